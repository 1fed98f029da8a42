"""The contract of environments and adapters, as checks that tests call (``test_contract.py``, backends)."""

from __future__ import annotations

from collections.abc import Iterable

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, EnumeratedEnv, Step

ODD = (
    "",
    " ",
    "\n",
    "\x00",
    "\ud800",
    "sing",
    "search[",
    "finish[]",
    "Action: x",
    "0",
    "-1",
    "x" * 5000,
    "🙂",
    "]" * 50,
)
"""Texts that no environment lists as actions."""


def check_acted(
    env: AgentEnv, other: AgentEnv, tasks: Iterable[int], actions: int = 150, *, expert_listed: bool = True
) -> None:
    """Check an environment with text actions. ``other``: a second copy; ``actions``: random actions per task."""
    for task in tasks:
        first = env.reset(task)
        start = env.snapshot()
        _plays_any_text(env, task, actions)
        assert env.reset(task) == first == other.reset(task), "a reset is a function of the task"
        assert env.snapshot() == start, "so is the state after it"
        _leaves_other_states_alone(env, other, task)
        _expert_reaches_one(env, task, expert_listed)


def _plays_any_text(env: AgentEnv, task: int, actions: int) -> None:
    """Any text is accepted, listed or not. Rewards are in [0, 1]. After the end there are no actions."""
    draw = rng("contract", env.name, task)
    for _ in range(actions):
        listed = env.valid_actions() or [move.action for move in env.expert()]
        action = draw.choice(listed) if listed and draw.random() < 0.8 else draw.choice(ODD)
        step = env.step(action)
        check_step(step)
        if step.done:
            assert not env.expert()
            assert not env.valid_actions()
            again = env.step(draw.choice(ODD))
            assert (again.reward, again.done) == (step.reward, True)
            env.reset(task)


def check_step(step: Step) -> None:
    assert isinstance(step.observation, str)
    assert 0 <= step.reward <= 1
    assert isinstance(step.done, bool)
    assert {"raw_score", "valid", "disaster"} <= set(step.info)


def _leaves_other_states_alone(env: AgentEnv, other: AgentEnv, task: int) -> None:
    """The outcome of an action does not depend on other actions from the same state or in another copy."""
    env.reset(task)
    start, way = env.snapshot(), env.expert()
    one = env.step(way[0].action)
    after = env.snapshot()
    env.restore(start)
    for text in ODD:
        env.step(text)
    other.reset(task)
    other.step("sing")
    env.restore(start)
    assert env.expert() == way
    again = env.step(way[0].action)
    assert (again.observation, again.reward, again.done) == (one.observation, one.reward, one.done)
    assert env.snapshot() == after
    other.restore(after)  # a snapshot is valid in any copy
    assert [move.action for move in other.expert()] == [move.action for move in env.expert()]


def _expert_reaches_one(env: AgentEnv, task: int, expert_listed: bool) -> None:
    env.reset(task)
    for _ in range(200):
        way = env.expert()
        if not way:
            break
        assert way[0].thought.strip()
        listed = env.valid_actions() if expert_listed else None
        assert listed is None or way[0].action in listed
        step = env.step(way[0].action)
    assert step.reward == 1, f"{env.name}: the expert ends task {task} with {step.reward}"
    assert step.done


def check_labelled(env: EnumeratedEnv, tasks: Iterable[int], actions: int = 150) -> None:
    """Check an environment whose actions are listed with labels."""
    for task in tasks:
        first = env.reset(task)
        start, draw = env.snapshot(), rng("contract", env.name, task)
        for _ in range(actions):
            labels = list(env.commands())
            assert list(env.state().labels) == labels
            assert set(labels) <= set(env.labels)
            played = env.step(draw.choice(labels if draw.random() < 0.8 else ODD))
            assert isinstance(played.cost, float)
            if played.done:
                assert env.commands() == {}
                env.reset(task)
        assert env.reset(task) == first
        assert env.snapshot() == start
        copy = env.copy()
        copy.step(next(iter(copy.commands())))
        assert env.state() == first, "a copy shares nothing that changes"
        if len(env.oracle()) > env.max_turns:
            continue
        for _ in range(env.max_turns):
            command = env.oracle()[0]
            label = next(label for label, each in env.commands().items() if each == command)
            played = env.step(label)
            if played.done:
                break
        assert played.success, f"{env.name}: the oracle fails task {task}"
