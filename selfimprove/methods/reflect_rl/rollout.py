"""One episode: the frozen model reflects, the policy reads state, reflection and actions, and one token is the action
(docs/reflect-rl.md, L1 to L7). Used by reinforcement learning and by evaluation.

This module does not batch, write or log. Hundreds of ``play`` calls run concurrently, and the engines batch all pending
requests.
"""

from typing import NamedTuple

from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Engine, Request
from selfimprove.envs.interface import EnumeratedEnv, Played, State
from selfimprove.methods.reflect_rl.episode import RLEpisode, RLStep, play_steps, taken
from selfimprove.methods.reflect_rl.prompts import MARKERS, Markers, cut_reflection, policy_prompt, reflection_prompt
from selfimprove.methods.reflect_rl.rl_config import ActingParams

ADVICE = 1
"""Sample index of the reflection's noise (the action's is 0)."""


async def play(
    task: int,
    env: EnumeratedEnv,
    reflector: Engine | None,
    policy: Engine,
    cfg: ActingParams,
    key: SeedKey,
    level: str = "",
    *,
    episode: int = 0,
    markers: Markers = MARKERS["spaced"],
) -> RLEpisode:
    """Play a task to its end, on a copy of ``env``.

    Args:
        key: seeds the episode's noise. Episodes of one batch share ``key.run``, and with it the coin flips for
            ``cfg.reflect_prob``.
        episode: which of the task's draws (of labels and left-out files) to play.

    Raises:
        UserError: the environment returned a non-finite cost.
    """
    env = env.copy()

    async def act(state: State, here: SeedKey) -> tuple[RLStep, Played]:
        advice = None if reflector is None else await _reflect(reflector, env, state, cfg, here, markers)
        reflection = None if advice is None else advice.text
        prompt = policy_prompt(env.instruction, state, reflection, markers)
        request = Request(
            prompt, here, temperature=cfg.temperature, top_p=cfg.top_p, top_k=cfg.top_k, max_tokens=1,
            allowed=_allowed(env, state, cfg), choice=True, cut_left=True,
        )  # fmt: skip
        (answer,) = await policy.generate(request)
        command, played = taken(env, task, answer.text)
        choice = answer.choice
        step = RLStep(
            prompt=prompt[0].content,
            reflection=reflection,
            label=answer.text,
            command=command,
            logprob=choice.logprob if choice else None,
            entropy=choice.entropy if choice else None,
            cost=played.cost,
            valid=played.valid,
            shortened=(advice is not None and advice.shortened) or not policy.fits(prompt, 1),
            cut=advice is not None and advice.cut,
            prompt_ids=choice.prompt_ids if choice else [],
            token=choice.token if choice else -1,
            labels=state.labels,
            unlisted=state.unlisted,
        )
        return step, played

    return await play_steps(env, task, level, episode, key, act)


def reflects(cfg: ActingParams, key: SeedKey) -> bool:
    """The step's coin flip for ``reflect_prob``: one for all episodes of the batch (``key.run``)."""
    return cfg.reflect_prob == 1 or rng("reflect", key.run, key.turn).random() < cfg.reflect_prob


class _Advice(NamedTuple):
    """A reflection as shown to the policy; whether its prompt was cut on the left; whether it reached max_tokens."""

    text: str
    shortened: bool
    cut: bool


async def _reflect(
    reflector: Engine, env: EnumeratedEnv, state: State, cfg: ActingParams, key: SeedKey, markers: Markers
) -> _Advice:
    """The frozen model's analysis of a state, whose prompt excludes the actions; "" if the coin flip skips it."""
    if not reflects(cfg, key):
        return _Advice("", False, False)
    prompt = reflection_prompt(env.instruction, state, markers)
    request = Request(
        prompt, key.at(ADVICE), temperature=cfg.reflect_temperature, top_p=cfg.reflect_top_p,
        max_tokens=cfg.max_tokens, cut_left=True,
    )  # fmt: skip
    (answer,) = await reflector.generate(request)
    short = not reflector.fits(prompt, cfg.max_tokens)
    return _Advice(cut_reflection(answer.text, markers), short, answer.finish == "length")


def _allowed(env: EnumeratedEnv, state: State, cfg: ActingParams) -> tuple[str, ...] | None:
    """The policy's choices: the labels listed now, all labels (shrink_head), or the whole vocabulary (None).

    If no label is listed, all labels are allowed, and the step passes.
    """
    if cfg.mask_invalid:
        return state.labels or env.labels
    return env.labels if cfg.shrink_head else None
