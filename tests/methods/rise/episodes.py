"""Builders of small episodes for the RISE tests."""

from typing import Any

from selfimprove.core.records import Attempt, Episode, Turn
from selfimprove.methods.rise.prompts import feedback, opening

QUESTION = "How many clips?"


def attempt(reward: Any, text: Any = None, answer: Any = None, **more: Any) -> Attempt:
    """An attempt; by default its text and answer follow from the reward."""
    if answer is None and reward is not None and reward >= 0:
        answer = "72" if reward == 1 else "70"
    return Attempt(text=text if text is not None else f"try {reward}", reward=reward, answer=answer, **more)


def episode(*turns: Any, id: str = "p1", status: Any = None, **more: Any) -> Episode:
    """An episode of turns; a turn is one attempt or a list of attempts (the best is chosen, ties to the earliest)."""
    made = []
    for turn in turns:
        attempts = turn if isinstance(turn, list) else [turn]
        chosen = max(range(len(attempts)), key=lambda i: (attempts[i].reward is not None, attempts[i].reward or 0, -i))
        observation = feedback(attempts[chosen].reward, QUESTION)
        made.append(Turn(model="student", attempts=attempts, chosen=chosen, observation=observation))
    solved = any(turn.attempt.reward == 1 for turn in made)
    return Episode(
        id=id,
        env="gsm8k",
        query=QUESTION,
        gold="#### 72",
        prompt=more.pop("prompt", opening(QUESTION)),
        turns=made,
        status=status or ("solved" if solved else "unsolved"),
        seed=f"0/{id}",
        **more,
    )


def run(*rewards: Any, id: str = "p1", **more: Any) -> Any:
    """An episode with one distinct attempt per turn and the given rewards."""
    return episode(*(attempt(reward, text=f"try {i}: {reward}") for i, reward in enumerate(rewards)), id=id, **more)
