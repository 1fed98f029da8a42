"""RISE's data collection and evaluation on one problem (docs/rise.md, R12 to R17, R32 and R33).

This module does not batch, retry, write or log. The runner plays hundreds of episodes concurrently, the engines batch
all pending requests, and a journal around the engines preserves finished work if the process is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfimprove.core.outcomes import ratio
from selfimprove.core.records import Attempt, Episode, Message, Status, Turn, mean_and_error
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, EngineError, Request
from selfimprove.envs.interface import AnswerEnv, CarriesOut, EnvError, Problem
from selfimprove.methods.omissions import cut_completions, shortened_prompts
from selfimprove.methods.rise.params import EvaluateParams, GenerateParams
from selfimprove.methods.rise.prompts import Exchange, degenerate, feedback, limit_dialogue, opening, visible

RESAMPLE_STRIDE = 1000
"""Sample indices of the n-th redraw start at n times this number, or n times the samples if they are more, so that each
redraw has its own noise."""


@dataclass(frozen=True)
class Play:
    """Settings shared by all episodes of a stage. ``run_seed`` seeds the noise; leaving the context closes the env."""

    env: AnswerEnv
    few_shot: bool
    run_seed: int

    async def __aenter__(self) -> Play:
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self.env, CarriesOut):
            await self.env.close()


async def collect(problem: Problem, engines: Mapping[str, Engine], play: Play, cfg: GenerateParams) -> Episode:
    """Collect one episode: ``models[t]`` draws ``num_of_samples[t]`` attempts at turn t, and the best is the action.

    The episode ends at the first correct attempt or after ``max_turns``. The earliest sample wins ties. If an engine or
    the environment fails permanently, the episode is ``blocked`` and keeps its earlier turns. (In the released code a
    failure in the first turn ended the whole run.)
    """
    start = opening(problem.question, play.few_shot)
    pairs: list[Exchange] = []
    turns: list[Turn] = []
    for turn in range(cfg.max_turns):
        model = cfg.models[turn]
        dialogue = _prompt(start, pairs, engines[model], cfg)
        try:
            drawn, dropped = await _draw(engines[model], dialogue, problem, turn, play, cfg)
            scored = [await _score(completion, problem, play.env) for completion in drawn]
        except (EngineError, EnvError) as error:
            return _episode(problem, start, turns, play, "blocked", str(error))
        attempts = [attempt for attempt, _ in scored]
        chosen = max(range(len(attempts)), key=lambda i: (_reward(attempts[i]), -i))
        solved = attempts[chosen].reward == 1
        turns.append(
            Turn(
                model=model,
                attempts=attempts,
                chosen=chosen,
                observation=feedback(attempts[chosen].reward, problem.question, told=scored[chosen][1]),
                omitted=_omitted(start, pairs, dialogue),
                degenerate=dropped,
            )
        )
        if solved:
            return _episode(problem, start, turns, play, "solved")
        pairs.append(turns[-1].messages)
    return _episode(problem, start, turns, play, "unsolved")


async def evaluate(problem: Problem, engine: Engine, play: Play, cfg: EvaluateParams) -> tuple[Episode, Episode]:
    """The sequential and the parallel run, which share the first attempt.

    Sequential: ``max_turns`` turns of one attempt each; a prompt shows at most ``context_window`` - 1 earlier ones.
    Without an oracle every feedback is "incorrect" and no run ends early; with one it ends at the first correct one.
    Parallel: ``parallel_samples`` first attempts. The first sample always enters the history. Choosing the sample with
    the best reward, as the released code does, would use the oracle.
    """
    start = opening(problem.question, play.few_shot)
    pairs: list[Exchange] = []
    turns: list[Turn] = []
    first: list[Attempt] = []
    for turn in range(cfg.max_turns):
        dialogue = _prompt(start, pairs, engine, cfg)
        samples = cfg.parallel_samples if turn == 0 else 1
        try:
            drawn = await engine.generate(_request(dialogue, SeedKey(play.run_seed, problem.id, turn), samples, cfg))
            scored = [await _score(completion, problem, play.env) for completion in drawn]
        except (EngineError, EnvError) as error:
            sequential = _episode(problem, start, turns, play, "blocked", str(error))
            return _both(sequential, first, problem, start, play)
        attempts = [attempt for attempt, _ in scored]
        first = first or attempts
        right = attempts[0].reward == 1
        told = scored[0][1]
        observation = feedback(attempts[0].reward, problem.question, forced_negative=not cfg.oracle, told=told)
        omitted = _omitted(start, pairs, dialogue)
        turns.append(Turn(model="student", attempts=attempts[:1], chosen=0, observation=observation, omitted=omitted))
        if right and cfg.oracle:
            break
        pairs.append(turns[-1].messages)
    solved: Status = "solved" if any(turn.attempt.reward == 1 for turn in turns) else "unsolved"
    return _both(_episode(problem, start, turns, play, solved), first, problem, start, play)


def _both(
    sequential: Episode, first: list[Attempt], problem: Problem, start: list[Message], play: Play
) -> tuple[Episode, Episode]:
    """The sequential run and the parallel run with these first attempts, each labelled and with its own status."""
    turns = [Turn(model="student", attempts=first, chosen=0, observation="")] if first else []
    status: Status = "solved" if any(attempt.reward == 1 for attempt in first) else "unsolved" if first else "blocked"
    parallel = _episode(problem, start, turns, play, status, None if first else sequential.error)
    return sequential.model_copy(update={"run": "sequential"}), parallel.model_copy(update={"run": "parallel"})


def collection_metrics(episodes: Sequence[Episode], window: int | None = None) -> dict[str, Any]:
    """Metrics of a collection: correct and unparsable first attempts, solved and blocked episodes, number of samples.

    ``shortened_prompts`` is the share of turns whose prompt left out messages that the context window ``window`` shows;
    ``cut_completions`` is the share of the kept samples that reached ``max_tokens``; ``degenerate``, present only if
    there are any, the share of all samples that were dropped as degenerate.
    """
    firsts = [episode.turns[0].attempt for episode in episodes if episode.turns]
    samples = [len(turn.attempts) for episode in episodes for turn in episode.turns]
    dropped = [
        (sum(turn.degenerate for turn in episode.turns), sum(len(turn.attempts) for turn in episode.turns))
        for episode in episodes
    ]
    return {
        "episodes": len(episodes),
        "first_right": mean_and_error(float(attempt.reward == 1) for attempt in firsts),
        "first_unparsable": mean_and_error(float(attempt.answer is None) for attempt in firsts),
        "solved": mean_and_error(float(episode.status == "solved") for episode in episodes),
        "blocked": sum(episode.status == "blocked" for episode in episodes),
        "samples": sum(samples),
        "shortened_prompts": shortened_prompts(episodes, window),
        "cut_completions": cut_completions(episodes),
        **({"degenerate": ratio((n, n + kept) for n, kept in dropped)} if any(n for n, _ in dropped) else {}),
    }


async def _draw(
    engine: Engine, dialogue: Sequence[Message], problem: Problem, turn: int, play: Play, cfg: GenerateParams
) -> tuple[list[Completion], int]:
    """A turn's samples without degenerate ones, and the number of these; redrawn up to ``resamples`` times if all are
    degenerate."""
    drawn, dropped = list[Completion](), 0
    for again in range(cfg.resamples + 1):
        stride = max(RESAMPLE_STRIDE, cfg.num_of_samples[turn])
        key = SeedKey(play.run_seed, problem.id, turn, again * stride)
        drawn = await engine.generate(_request(dialogue, key, cfg.num_of_samples[turn], cfg))
        kept = [completion for completion in drawn if not degenerate(completion.text)]
        dropped += len(drawn) - len(kept)
        if kept:
            return kept, dropped
    return drawn[:1], dropped - 1  # all draws are degenerate: the first of the last one is scored


def _request(dialogue: Sequence[Message], key: SeedKey, samples: int, cfg: GenerateParams | EvaluateParams) -> Request:
    return Request(
        messages=dialogue,
        seed=key,
        n=samples,
        temperature=cfg.temperature,
        top_p=cfg.top_p,
        max_tokens=cfg.max_tokens,
    )


def _prompt(
    start: Sequence[Message], pairs: Sequence[Exchange], engine: Engine, cfg: GenerateParams | EvaluateParams
) -> list[Message]:
    """The next prompt: the opening and the last pairs that fit the window, the limit and the engine's context."""
    fixed = len(start)
    dialogue = limit_dialogue(visible(start, pairs, cfg.context_window), opening=fixed, limit=cfg.dialogue_limit)
    while len(dialogue) > fixed and not engine.fits(dialogue, cfg.max_tokens):
        del dialogue[fixed : fixed + 2]
    return dialogue


def _omitted(start: Sequence[Message], pairs: Sequence[Exchange], dialogue: Sequence[Message]) -> int:
    return len(start) + 2 * len(pairs) - len(dialogue)


async def _score(completion: Completion, problem: Problem, env: AnswerEnv) -> tuple[Attempt, str | None]:
    """The graded attempt, and its outcome as text if the environment carries attempts out (otherwise None)."""
    if isinstance(env, CarriesOut):
        grade, told = await env.carry_out(completion.text, problem)
    else:
        grade, told = env.grade(completion.text, problem), None
    attempt = Attempt(
        text=completion.text,
        reward=grade.reward,
        answer=grade.answer,
        token_ids=completion.token_ids,
        finish=completion.finish,
    )
    return attempt, told


def _reward(attempt: Attempt) -> float:
    return float("-inf") if attempt.reward is None else attempt.reward


def _episode(
    problem: Problem, start: list[Message], turns: list[Turn], play: Play, status: Status, error: str | None = None
) -> Episode:
    return Episode(
        id=problem.id,
        env=play.env.name,
        query=problem.question,
        gold=problem.answer,
        prompt=start,
        turns=turns,
        status=status,
        seed=f"{play.run_seed}/{problem.id}",
        error=error,
    )
