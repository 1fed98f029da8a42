"""Base classes for user-defined environments: what they derive, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import AgentEnv, AnswerEnv, to_row
from selfimprove.envs.own import TextEnv
from selfimprove.envs.own_classes import own_class
from selfimprove.envs.qa.experts import QuestSource
from selfimprove.envs.qa.own import Fact
from selfimprove.envs.registry import answer_env, listed_env, text_env
from tests.envs.own_worlds import Colours, Corridor, Lavish, Words

HERE = Path("rows.jsonl")


class Unwinnable(Corridor):
    def act(self, action: str) -> tuple[str, float, bool]:
        said, _, ended = super().act(action)
        return said, 0.5, ended


class Half(TextEnv):
    instruction = ""

    def begin(self, task_id: int) -> str:
        return ""


def test_the_expert_finds_a_shortest_path_from_any_state_without_changing_it() -> None:
    env = Corridor()
    env.reset(2)
    before = env.snapshot()
    assert [move.action for move in env.expert()] == ["right", "open"]
    assert env.snapshot() == before
    env.step("left")
    assert [move.action for move in env.expert()] == ["right", "right", "open"]
    env.restore(before)
    assert env.path == [0]
    assert env.step("right").observation == "Door 1."
    assert [move.action for move in env.expert()] == ["open"]
    assert env.step("open").reward == 1
    assert env.expert() == []


class Lamps(TextEnv):
    """Ten lamps, each toggled by its own action; the goal is that all are on."""

    instruction = "Turn on all lamps."
    actions = tuple(f"lamp {i}" for i in range(10))
    tasks = 1
    largest_search = 1025

    def begin(self, task_id: int) -> str:
        self.lamps = ["off"] * 10
        return "All lamps are off."

    def act(self, action: str) -> tuple[str, float, bool]:
        place = int(action.split()[1])
        self.lamps[place] = "".join(("o", "n" if self.lamps[place] == "off" else "ff"))  # a new object each time
        return "Click.", float(self.lamps == ["on"] * 10), False


def test_equal_states_are_one_state_of_the_experts_search_whatever_objects_they_share() -> None:
    lamps = Lamps()
    lamps.reset(0)
    assert sorted(move.action for move in lamps.expert()) == sorted(Lamps.actions)


def test_the_expert_gives_up_on_an_unreachable_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unwinnable, "largest_search", 50)  # the path grows, so the number of states is unbounded
    act, tried = Unwinnable.act, list[str]()

    def counted(env: Unwinnable, action: str) -> tuple[str, float, bool]:
        tried.append(action)
        return act(env, action)

    monkeypatch.setattr(Unwinnable, "act", counted)
    env = Unwinnable()
    env.reset(0)
    assert env.expert() == []
    assert env.path == [0]
    assert 0 < len(tried) < 200


def test_an_unknown_task_and_a_reward_above_1_are_refused() -> None:
    with pytest.raises(UserError, match=r"corridor has no task 3; choose one from 0 to 2\."):
        Corridor().reset(3)
    env = Lavish()
    env.reset(0)
    with pytest.raises(UserError, match=r"lavish: act gave reward 2\.0 for 'open'; rewards must be from 0 to 1\."):
        env.step("open")


def test_missing_methods_of_a_class_are_reported() -> None:
    assert own_class(f"{__name__}:Corridor", AgentEnv) is Corridor
    assert own_class(f"{__name__}:Words", AnswerEnv) is Words
    assert own_class(f"{__name__}:Colours", QuestSource) is Colours
    with pytest.raises(ValueError, match=r"Half lacks act; add what AgentEnv in"):
        own_class(f"{__name__}:Half", AgentEnv)


class Unexplained(TextEnv):
    def begin(self, task_id: int) -> str:
        return "You stand."

    def act(self, action: str) -> tuple[str, float, bool]:
        return "Done.", 1.0, True


def test_missing_methods_are_those_of_the_class_s_own_kind_in_every_method() -> None:
    for method in (text_env, listed_env, answer_env):
        for name, said in (("Half", "Half lacks act; add"), ("Unexplained", "Unexplained lacks instruction; add")):
            with pytest.raises(UserError, match=rf"{said} what AgentEnv in selfimprove\.envs\.interface requires"):
                method(name=f"{__name__}:{name}")


class Sized(Corridor):
    """Its texts are properties, as in the interface, and depend on its options."""

    def __init__(self, doors: int = 3) -> None:
        self.doors = doors

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"corridor{self.doors}"

    @property
    def instruction(self) -> str:  # type: ignore[override]
        return f"Find the door among {self.doors}."


def test_a_name_and_an_instruction_may_be_properties() -> None:
    text = text_env(name=f"{__name__}:Sized", options={"doors": 5})
    listed = listed_env(name=f"{__name__}:Sized", options={"doors": 5})
    assert text.world_name == text.make().name == listed.world_name == listed.spelling().name == "corridor5"
    assert listed.instruction() == listed.make().instruction == "Find the door among 5.\n"


def test_answers_are_loaded_only_if_their_demonstration_earns_the_reward() -> None:
    (problem,) = Words().load([(1, {"question": "2 + 2?", "answer": "4"})], HERE)
    assert Words().grade("I say 4", problem) == (1.0, "4")
    assert Words().grade("", problem) == (0.0, None)
    assert Words().slip(problem, 1) in ("It is 3", "It is 5")
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2: words extracts 'Hull' from its demonstration"):
        Words().load([(2, {"question": "Where?", "answer": "Kingston upon Hull"})], HERE)
    with pytest.raises(UserError, match="line 3: question and answer must be strings"):
        Words().load([(3, {"question": "2 + 2?", "answer": 4})], HERE)


def test_repeated_questions_in_a_file_get_distinct_ids() -> None:
    rows: list[dict[str, object]] = [
        {"question": "q", "answer": "a"},
        {"question": "q", "answer": "b"},
        {"question": "q", "answer": "c", "id": 7},
        {"question": "r", "answer": "a", "id": None},
        {"question": "s", "answer": "b", "id": None},
    ]
    loaded = Words().load(enumerate(rows, start=1), HERE)
    assert [problem.id for problem in loaded] == ["q", "q-2", "7", "r", "s"]
    assert Words().load(enumerate([to_row(one, Words()) for one in loaded], start=1), HERE) == loaded


def test_facts_are_divided_into_splits_that_share_no_question() -> None:
    dealt = [{quest.question.question for quest in Colours().quests(split, n)} for split, n in SIZES]  # type: ignore[arg-type]
    assert [len(one) for one in dealt] == [16, 2, 2]
    assert len(set.union(*dealt)) == 20
    with pytest.raises(
        UserError,
        match=r"spin\.tasks\.dev, or env\.questions .*: 3 questions are requested, but Colours has 2 for",
    ):
        Colours().quests("dev", 3)


SIZES = (("train", 16), ("dev", 2), ("test", 2))


class Repainted(Colours):
    def facts(self) -> list[Fact]:
        return [*super().facts(), Fact("Bird0", "Bird0 is blue.", "Which colour has Bird0 now?", "blue")]


def test_facts_with_one_title_but_different_texts_are_refused() -> None:
    with pytest.raises(UserError, match=r"Repainted: two facts have the title 'Bird0' but different texts"):
        Repainted().paragraphs()
    assert len(Colours().paragraphs()) == len(Colours().facts())
