"""Evaluates one task: the policy plays it from its start or from a given bad beginning (docs/agent-r.md, A30).

Like ``search``, this module does not batch, retry, write or log.
"""

from collections.abc import Sequence

from selfimprove.core.records import Attempt, Episode, Message, Status, Turn
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, EngineError
from selfimprove.envs.interface import EnvError, World, name_of
from selfimprove.methods.agent_r.acting import EpisodeState, act, ask, begin, episode_id, generated_ids
from selfimprove.methods.agent_r.params import EvaluateParams

ACTOR = "actor"
"""``Turn.model`` of the policy's own turns."""
GIVEN = "given"
"""``Turn.model`` of the turns of a given bad beginning, which are not steps of the policy."""


async def play(
    task_id: int, world: World, actor: Engine, cfg: EvaluateParams, seed: int, bad_prefix: Sequence[str] = ()
) -> Episode:
    """One episode: the given replies, then at most ``cfg.max_turns`` replies of the actor.

    Each turn has one attempt: the stored reply as ``text``, the action as ``answer``, the score so far as ``reward``.
    The last reward is the episode's score; a negative score counts as 0 and ends the episode. ``solved``: the score is
    1. ``blocked``: the engine or environment failed permanently; the turns before that are kept.
    """
    name = episode_id(world, task_id, bad_prefix)
    prompt: list[Message] = []
    turns: list[Turn] = []
    status: Status = "unsolved"
    error = None
    try:
        prompt, states = await begin(world, task_id, bad_prefix)
        turns += [_turn(here, GIVEN) for here in states[1:]]
        here, dialogue = states[-1], [*prompt]
        for turn in turns:
            dialogue += turn.messages
        for step in range(cfg.max_turns):
            if here.done:
                break
            (completion,), omitted = await ask(actor, dialogue, cfg, SeedKey(seed, name, step))
            here = await act(world, here, completion.text)
            turns.append(_turn(here, ACTOR, completion, omitted))
            dialogue += turns[-1].messages
        if here.reward == 1:
            status = "solved"
    except (EngineError, EnvError) as failure:
        status, error = "blocked", str(failure)
    return Episode(
        id=name,
        env=name_of(world, task_id),
        query=prompt[-1].content if prompt else "",
        gold="",
        prompt=prompt,
        turns=turns,
        status=status,
        seed=f"{seed}/{name}",
        error=error,
    )


def _turn(here: EpisodeState, model: str, completion: Completion | None = None, omitted: int = 0) -> Turn:
    attempt = Attempt(
        text=here.reply,
        reward=here.reward,
        answer=here.action,
        token_ids=generated_ids(completion, here.reply) if completion else None,
        finish=completion.finish if completion else None,
        valid=here.valid,
    )
    return Turn(model=model, attempts=[attempt], chosen=0, observation=here.observation, omitted=omitted)
