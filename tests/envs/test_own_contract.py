"""The contract of user-defined environments: what its check refuses, and how a later fault is reported."""

from __future__ import annotations

from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs import contract
from selfimprove.envs.interface import CarriesOut, MakesProblems, Move, Problem, Step
from selfimprove.envs.qa.own import Fact, Facts
from selfimprove.envs.registry import answer_env, listed_env, text_env
from selfimprove.envs.splits import HeldOut
from tests.envs.own_worlds import Corridor, Lavish, Words

__all__ = ["Lavish"]


class Dice(Corridor):
    """Its reset depends on the number of previous resets."""

    rolls = 0

    def begin(self, task_id: int) -> str:
        Dice.rolls += 1
        super().begin(task_id)
        return f"Roll {Dice.rolls}."


class Broken(Corridor):
    def begin(self, task_id: int) -> str:
        raise KeyError(task_id)


class Paid(Corridor):
    """Overrides ``step``, and thus the check in its base class."""

    def step(self, action: str) -> Step:
        return super().step(action)._replace(reward=-5.0)


class Untold(Corridor):
    def step(self, action: str) -> Step:
        return super().step(action)._replace(info=None)  # type: ignore[arg-type]


class Silent(Corridor):
    def begin(self, task_id: int) -> str:
        super().begin(task_id)
        return None  # type: ignore[return-value]


class Mute(Corridor):
    def act(self, action: str) -> tuple[str, float, bool]:
        return None, 0.0, False  # type: ignore[return-value]


class Numbered(Corridor):
    actions = (0, 1, 2)  # type: ignore[assignment]


class Unexplained(Corridor):
    instruction = None  # type: ignore[assignment]


class Stream(Corridor):
    def begin(self, task_id: int) -> str:
        self.rolls = (task_id + i for i in range(3))
        return super().begin(task_id)


class Lettered(Corridor):
    def task_ids(self) -> list[int]:
        return ["a", "b"]  # type: ignore[list-item]


class Doubled(Corridor):
    def task_ids(self) -> list[int]:
        return HeldOut({"train": [0, 1], "dev": [], "test": [1, 2]}, "more")


class Undivided(Corridor):
    def task_ids(self) -> list[int]:
        return HeldOut({"train": [0, 1], "test": [2]}, "more")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lettered", r"Lettered: task_ids lists 'a'; a task's id must be a whole number from 0\."),
        ("Doubled", r"Doubled: task_ids lists 1 twice, so it could be in two splits; list each task once\."),
        (
            "Undivided",
            r"HeldOut needs the parts train, dev and test, of which some may be empty; got \['train', 'test'",
        ),
        ("Silent", r"silent: task 0 begins with None; an observation must be a string"),
        ("Mute", r"mute: act answers '\w+' with None; an observation must be a string"),
        ("Untold", r"Untold: step gave info None; it must be a mapping, such as \{'valid': True\}"),
        ("Numbered", r"Numbered lists the action \d; an action must be a string"),
        ("Unexplained", r"Unexplained: instruction is None; it must be a string"),
        (
            "Stream",
            r"stream: the state cannot be copied \(cannot pickle 'generator' object\); move constant attributes",
        ),
        ("Dice", r"Dice: task 0 began with 'Roll \d\.' and then with 'Roll \d\.'; reset must depend only on"),
        ("Paid", r"Paid: step gave reward -5\.0 for '\w+'; rewards must be from 0 to 1"),
        ("Lavish", r"act gave reward 2\.0 for '\w+'; rewards must be from 0 to 1"),
        ("Broken", r"Broken failed in .*test_own_contract\.py, line \d+ \(KeyError: 0\); fix the class"),
    ],
)
def test_a_violated_contract_is_reported_when_the_environment_is_created(name: str, said: str) -> None:
    for section in (text_env(name=f"{__name__}:{name}"), listed_env(name=f"{__name__}:{name}", labels="single")):
        with pytest.raises(UserError, match=said) as refused:
            section.make()
        assert "\n" not in str(refused.value)


class Forgetful(Corridor):
    """Its states share one list, which an earlier snapshot therefore does not hold as it was."""

    def begin(self, task_id: int) -> str:
        self.been = list[str]()
        return super().begin(task_id)

    def act(self, action: str) -> tuple[str, float, bool]:
        self.been.append(action)
        said, reward, done = super().act(action)
        return f"{said} Step {len(self.been)}.", reward, done

    def snapshot(self) -> Any:
        return dict(vars(self))

    def restore(self, snapshot: Any) -> None:
        vars(self).update(snapshot)


class Restless(Corridor):
    """Its steps depend on more than the state."""

    steps = 0

    def act(self, action: str) -> tuple[str, float, bool]:
        Restless.steps += 1
        said, reward, done = super().act(action)
        return f"{said} Step {Restless.steps}.", reward, done


@pytest.mark.parametrize("name", ["Forgetful", "Restless"])
def test_a_snapshot_that_does_not_return_to_its_state_is_refused_before_the_search(name: str) -> None:
    said = (
        rf"{name}: '\w+' led to the observation '.* Step \d+\.', and again from the same state, restored, to '.* Step"
    )
    with pytest.raises(UserError, match=said):
        text_env(name=f"{__name__}:{name}").make()


class Late(Corridor):
    def begin(self, task_id: int) -> str:
        return super().begin(task_id) if task_id == 0 else None  # type: ignore[return-value]


def test_an_observation_that_is_no_text_is_reported_in_every_task() -> None:
    env = text_env(name=f"{__name__}:Late").make()
    with pytest.raises(UserError, match=r"late: task 2 begins with None; an observation must be a string\."):
        env.reset(2)


class Terse(Corridor):
    def step(self, action: str) -> Step:
        said, reward, done, _ = super().step(action)
        return Step(said, reward, done, {"depth": 3})


def test_info_may_leave_out_what_is_usual() -> None:
    env = text_env(name=f"{__name__}:Terse").make()
    env.reset(1)
    assert env.step("open").info == {"raw_score": 1.0, "valid": True, "disaster": False, "depth": 3}


class Sudden(Corridor):
    def act(self, action: str) -> tuple[str, float, bool]:
        if self.door == 1:
            raise KeyError("key")
        return super().act(action)


def test_a_later_exception_of_a_users_class_is_one_sentence_with_class_task_and_place() -> None:
    env = text_env(name=f"{__name__}:Sudden").make()
    env.reset(2)
    inside = env.snapshot()
    env.reset(0)  # another episode, whose task is not to blame
    env.restore(inside)
    said = r":Sudden failed in step\('left'\) of task 2, in .*\.py, line \d+ \(KeyError: 'key'\); fix the"
    with pytest.raises(UserError, match=said) as refused:
        env.step("left")
    assert isinstance(refused.value.__cause__, KeyError)


class Brittle(Words):
    def extract(self, attempt: str) -> str | None:
        return attempt.split()[-1]

    def problems(self, counts: dict[str, int], *, seed: int, difficulty: Any = None) -> dict[str, list[Problem]]:
        return {split: [Problem("7", "a", "a", "a")] * count for split, count in counts.items()}


class Measured(Words):
    @property
    def mean(self) -> float:
        return 1 / 0  # nothing has been graded yet

    def problems(self, counts: dict[str, int], *, seed: int, difficulty: Any = None) -> dict[str, list[Problem]]:
        return {split: [] for split in counts}


def test_properties_of_a_users_class_that_the_interface_does_not_know_are_not_read() -> None:
    assert isinstance(answer_env(name=f"{__name__}:Measured", few_shot=False).make(), MakesProblems)


class Unread(Facts):
    def facts(self) -> list[Fact]:
        raise OSError("no such file")


def test_exceptions_of_users_answers_and_facts_name_what_was_called() -> None:
    env = answer_env(name=f"{__name__}:Brittle", few_shot=False).make()
    assert isinstance(env, MakesProblems)
    assert not isinstance(env, CarriesOut)
    (problem,) = env.problems({"train": 1}, seed=0)["train"]
    with pytest.raises(
        UserError, match=r"Brittle failed in grade\(' '\) of problem 7, .* \(IndexError: list index out"
    ):
        env.grade(" ", problem)
    with pytest.raises(UserError, match=r"Unread failed in quests\(.train.\), .*\(OSError: no such file\); fix"):
        text_env(name=f"{__name__}:Unread").make()


class Halved(Corridor):
    def begin(self, task_id: int) -> str:
        return super().begin(task_id) + "\ud800"

    def act(self, action: str) -> tuple[str, float, bool]:
        said, reward, done = super().act(action)
        return f"\ud800{said}", reward, done

    def expert(self) -> list[Move]:
        return [Move(f"\ud800{move.thought}", move.action) for move in super().expert()]


class HalfAction(Corridor):
    actions = ("left\ud800", "right", "open")


def test_lone_surrogates_of_a_users_class_are_replaced_and_in_actions_refused() -> None:
    env = text_env(name=f"{__name__}:Halved").make()
    assert env.reset(1) == "A corridor.\ufffd"
    assert env.expert() == [Move("\ufffdThis leads to the goal.", "open")]
    assert env.step("left").observation == "\ufffdDoor -1."
    with pytest.raises(UserError, match=r"lists the action 'left\\ud800'; an action must have no half of a character"):
        text_env(name=f"{__name__}:HalfAction").make()


def test_an_environment_that_keeps_the_contract_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = Corridor.begin

    def counted(self: Corridor, task_id: int) -> str:
        begun.append(task_id)
        return begin(self, task_id)

    monkeypatch.setattr(Corridor, "begin", counted)
    contract._DONE.clear()
    text_env(name=f"{__name__}:Corridor").make()
    assert begun == [0, 0, 0]
    text_env(name=f"{__name__}:Corridor").make()
    assert begun == [0, 0, 0]
