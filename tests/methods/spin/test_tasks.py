"""Splits, their order and their experts; a question may be in one split only (docs/spin.md, S15, S24, S29)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.own import Fact, Facts
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.methods.spin.params import PlayParams, SpinParams, TasksParams
from selfimprove.methods.spin.player import material
from selfimprove.methods.spin.prompts import RESPONSE, WRAPPER
from selfimprove.methods.spin.tasks import (
    SCAFFOLD,
    SPLITS,
    check_disjoint,
    chosen,
    examples,
    gather,
    texts,
    tool_modules,
)
from tests.methods.spin.episodes import EXPERT, QUESTION
from tests.support.profiles import profile
from tests.support.real_data import real, real_sources
from tests.support.sentences import refused_with

ROOT = Path(__file__).resolve().parents[3]


def split(count: int) -> list[Question]:
    return [QUESTION.model_copy(update={"id": f"q{n}", "question": f"Question {n}?"}) for n in range(count)]


def test_questions_are_shuffled_with_pythons_random_233_and_then_sliced() -> None:
    order = list(range(50))
    random.Random(233).shuffle(order)
    got = chosen(split(50), PlayParams(start=10, end=20))
    assert [index for index, _ in got] == order[10:20]
    assert all(question.id == f"q{index}" for index, question in got)
    assert [index for index, _ in chosen(split(50), PlayParams(shuffled=False, end=3))] == [0, 1, 2]
    assert len(chosen(split(50), PlayParams())) == 50


def test_requesting_questions_beyond_the_end_of_the_split_is_refused() -> None:
    with pytest.raises(UserError, match="questions 0 to 60 are requested, but the split has 50"):
        chosen(split(50), PlayParams(end=60))
    with pytest.raises(UserError, match="fix start and end"):
        chosen(split(50), PlayParams(start=50))


def test_a_question_in_two_splits_is_refused() -> None:
    train, test = split(4), split(2)[1:]
    test[0] = test[0].model_copy(update={"id": "other", "question": "  question 1? "})
    with pytest.raises(UserError, match=r"'question 1\?' is in train and test; keep it in only one"):
        check_disjoint({"train": train, "dev": [], "test": test})
    check_disjoint({"train": train[:1], "dev": [], "test": test})


@pytest.fixture(scope="module")
def book() -> Any:
    tasks = TasksParams(train=60, dev=10, test=20)
    return gather(tasks, ToolsParams(), seed=3, download=Path("unused"), mirror=None)


def test_every_training_question_of_the_encyclopedia_has_an_expert_with_reward_1(book: Any) -> None:
    assert [len(book.splits[name]) for name in ("train", "dev", "test")] == [60, 10, 20]
    assert [expert.question for expert in book.experts] == book.splits["train"]
    assert all(score(expert.answer, expert.question).reward == 1 for expert in book.experts)
    assert (book.audit.read, book.audit.kept) == (60, 60)


def test_examples_train_only_policy_messages_and_texts_have_the_fixed_pieces_as_tokens(book: Any) -> None:
    made = examples(book.experts, "alpaca")
    assert [example.source for example in made] == [question.id for question in book.splits["train"]]
    assert all(message.weight == (message.role == "assistant") for message in made[0].messages)
    rows = texts(made, "alpaca")
    assert [row["text"] for row in rows if row.get("fixed")] == [WRAPPER, RESPONSE, *SCAFFOLD]
    assert not any(WRAPPER in row["text"] for row in rows[7:])
    assert not any(row.get("fixed") for row in texts(examples([EXPERT], "chat"), "chat"))


def test_requesting_more_questions_than_the_encyclopedia_has_is_refused() -> None:
    tasks = TasksParams.model_validate({"train": 10**6, "dev": 1, "test": 1, "encyclopedia": {"people": 60}})
    with refused_with("raise people or request fewer"):
        gather(tasks, ToolsParams(), seed=3, download=Path("unused"), mirror=None)


class Series(Facts):
    def facts(self) -> list[Fact]:
        about = Fact("Funnybot", "Funnybot, of South Park after season 10, is in South Park.", "In what?", "South Park")
        asked = Fact("South Park (season 10)", "It began in March 2006.", "When did season 10 begin?", "2006")
        return [about, asked, *(Fact(f"Bird{i}", f"Bird{i} sings.", f"Does Bird{i} sing?", "yes") for i in range(8))]


def test_questions_whose_expert_finds_another_paragraph_are_left_out_and_counted() -> None:
    tasks = TasksParams(source=f"{__name__}:Series", train=2, dev=0, test=1)
    made = gather(tasks, ToolsParams(), seed=3, download=Path("unused"), mirror=None)
    assert [question.question for question in made.splits["train"]] == ["In what?"]
    assert [expert.question for expert in made.experts] == made.splits["train"]
    assert (made.audit.read, made.audit.kept, made.audit.dropped) == (2, 1, {"paragraph not found": 1})


def test_tool_modules_lists_the_file_of_a_users_own_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mytools.py").write_text("def add(text): return text")
    monkeypatch.syspath_prepend(str(tmp_path))
    tools = ToolsParams(
        use={"search": "local", "add": "mytools:add", "gone": "no_such_module.at:all"}, snippets="s.jsonl"
    )
    assert tool_modules(tools) == [str(tmp_path / "mytools.py")]


@pytest.mark.parametrize(("experts", "train"), [("gpt-4", 500), ("scripted", 221), ("both", 687)])
def test_hotpotqa_splits_and_experts_have_the_expected_sizes_sources_and_audit(
    experts: Any, train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    tasks = TasksParams(source="hotpotqa", experts=experts, train=train, dev=80, test=500)
    mirror = real_sources("hotpotqa_contexts", "fireact")
    made = gather(tasks, ToolsParams(), seed=3, download=tmp_path, mirror=mirror)
    assert len(made.experts) == len(made.splits["train"]) == train
    assert {expert.source for expert in made.experts} == {
        "gpt-4": {"gpt-4"}, "scripted": {"scripted"}, "both": {"gpt-4", "scripted"},
    }[experts]  # fmt: skip
    assert len(made.splits["test"]) == 500
    assert len({paragraph.title for paragraph in made.paragraphs}) == len(made.paragraphs) > 4937
    read, dropped = {
        "gpt-4": (500, {}),
        "scripted": (300, {"paragraph not found": 79}),
        "both": (755, {"scripted: paragraph not found": 68}),
    }[experts]
    assert (made.audit.read, made.audit.kept, made.audit.dropped) == (read, train, dropped)


def test_the_published_sample_needs_only_downloadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: Any, folder: Path, **_: Any) -> Any:
        asked.append(name)
        if name == "fireact":
            path = tmp_path / "hotpotqa.json"
            said = "Thought: I know.\nAction: finish[Ann]\nObservation: Episode finished, reward = True\n"
            row = {"instruction": "Who?", "input": "", "output": said}
            path.write_text(json.dumps([row, {**row, "instruction": "Where?"}]))
            return [path]
        assert name == "hotpotqa"
        rows = [{"question": f"Is it {n}?", "answer": "yes", "type": "bridge"} for n in range(30)]
        (folder / "dev_simplified.json").write_text(json.dumps(rows))
        return [folder / "dev_simplified.json"]

    monkeypatch.setattr("selfimprove.methods.spin.tasks.fetch", fetch)
    other = {"task": "hotpotqa", "split": "dev"}
    tasks = TasksParams.model_validate(
        {"source": "hotpotqa", "experts": "gpt-4", "train": 2, "dev": 0, "test": 30, "other": other}
    )
    made = gather(tasks, ToolsParams(use={"search": "serpapi"}), seed=3, download=tmp_path, mirror=None)
    assert asked == ["fireact", "hotpotqa"]
    assert [len(made.splits[name]) for name in SPLITS] == [2, 0, 30]
    assert made.paragraphs == []
    spin = SpinParams.model_validate(profile("smoke")["spin"]).model_copy(
        update={
            "tasks": tasks,
            "tools": ToolsParams(use={"search": "serpapi"}),
            "play_tools": ToolsParams(use={"search": "local"}),
        }
    )
    with pytest.raises(AssertionError):  # a tool that searches the paragraphs needs them
        material(spin, seed=3, download=tmp_path, mirror=None)
    assert asked[-1] == "hotpotqa_contexts"


def test_another_task_can_be_the_test_split(tmp_path: Path) -> None:
    other = {"task": "strategyqa", "split": "dev", "folder": str(real("fireact/tasks/strategyqa_dev.json").parent)}
    tasks = TasksParams.model_validate({"train": 5, "dev": 0, "test": 229, "other": other})
    made = gather(tasks, ToolsParams(), seed=3, download=tmp_path, mirror=None)
    assert {question.task for question in made.splits["test"]} == {"strategyqa"}
    with pytest.raises(UserError, match=r"spin.tasks.test: 230 are requested, but only 229 exist"):
        gather(tasks.model_copy(update={"test": 230}), ToolsParams(), seed=3, download=tmp_path, mirror=None)


def test_repeated_questions_of_the_other_task_are_kept_with_separate_ids(tmp_path: Path) -> None:
    rows = [{"question": "Is it so?", "answer": True}, {"question": "is it so?", "answer": True}]
    (tmp_path / "strategyqa_train_filtered.json").write_text(json.dumps(rows))
    other = {"task": "strategyqa", "split": "train", "folder": str(tmp_path)}
    tasks = TasksParams.model_validate({"train": 5, "dev": 0, "test": 2, "other": other})
    made = gather(tasks, ToolsParams(), seed=3, download=tmp_path, mirror=None)
    assert [question.question for question in made.splits["test"]] == ["Is it so?", "is it so?"]
    assert len({question.id for question in made.splits["test"]}) == 2


def test_the_released_runs_have_their_published_scores() -> None:
    """FireAct's Llama-2 runs on the first 500 of the shuffled dev order: 26.2 and 34.4 EM."""
    from selfimprove.interop.spin import score_file
    from selfimprove.methods.spin.trajectory import read_trajectories

    for name, em in (("llama2_7b_lora_t07", 0.262), ("llama2_13b_lora_t07", 0.344), ("gpt35_ft_t0", 0.4)):
        entries = read_trajectories(real(f"fireact/dev_trajs/hotpotqa_dev_0_500_{name}.json"))
        assert score_file(entries, 500)["em"]["mean"] == pytest.approx(em)
    order = list(range(7405))
    random.Random(233).shuffle(order)
    kept = json.loads(real("fireact/dev_trajs/hotpotqa_dev_0_500_llama2_7b_lora_t07.json").read_text())
    assert set(map(int, kept)) == set(order[:500])
