"""The real files: known retrieval quality, the released order, an audit of every expert (needs DATA_MIRROR)."""

import json
from collections import Counter
from typing import Any

import pytest

from selfimprove.core.records import read_records
from selfimprove.envs.qa.datasets import load_questions, score
from selfimprove.envs.qa.expert_files import read_experts, scripted_experts
from selfimprove.envs.qa.experts import hotpotqa_quest
from selfimprove.envs.qa.hotpotqa import context_paragraphs, read_question, task_order
from selfimprove.envs.qa.tools.bm25 import LocalSearch, read_corpus
from selfimprove.envs.qa.tools.replay import ReplaySearch, read_snippets
from selfimprove.envs.qa.tools.search import cut_near
from tests.support.real_data import real

LACKING = "a round lacks its thought, action or observation"
DEV = "hotpotqa/dev_simplified.json"
RUNS = ("gpt35_ft_t0", "llama2_13b_lora_t07", "llama2_7b_lora_t07")


@pytest.mark.parametrize(("setup", "any_of_five", "both_of_ten"), [("title_text", 0.950, 0.758), ("plain", 0.874, 0.5)])
def test_retrieval_quality_on_the_first_500_dev_questions(setup: Any, any_of_five: float, both_of_ten: float) -> None:
    search = LocalSearch(read_corpus(real("hotpotqa/dev500_corpus.jsonl")), setup=setup)
    rows = read_records(real("hotpotqa/dev500_questions.jsonl"))
    questions = [read_question(row, place) for place, row in rows]
    found = [(set(question.titles), search.ranked(question.question, 10)) for question in questions]
    assert sum(bool(gold & set(best[:5])) for gold, best in found) / len(found) == any_of_five
    assert sum(gold <= set(best) for gold, best in found) / len(found) == both_of_ten


@pytest.mark.parametrize(
    ("task", "split", "file", "count"),
    [
        ("hotpotqa", "dev", DEV, 7405),
        ("bamboogle", "test", "fireact/tasks/bamboogle_test.csv", 125),
        ("strategyqa", "dev", "fireact/tasks/strategyqa_dev.json", 229),
        ("strategyqa", "train", "fireact/tasks/strategyqa_train_filtered.json", 2821),
    ],
)
def test_every_gold_answer_is_rewarded(task: str, split: str, file: str, count: int) -> None:
    questions = load_questions(task, split, real(file).parent)
    assert len(questions) == len({question.id for question in questions}) == count
    assert [q.question for q in questions if score(q.gold, q).reward != 1 or score(q.gold, q).f1 != 1] == []


def test_the_released_runs_get_their_released_scores_except_empty_answers() -> None:
    questions = load_questions("hotpotqa", "dev", real(DEV).parent)
    order = task_order(len(questions))[:500]
    differing: Counter[Any] = Counter()
    for name in RUNS:
        runs = json.loads(real(f"fireact/dev_trajs/hotpotqa_dev_0_500_{name}.json").read_text())
        assert {int(key) for key in runs} <= set(order)  # the original's order of tasks
        for key, run in runs.items():
            mark = score(run["pred"], questions[int(key)])
            assert mark.gt == run["gt"]
            if (mark.em, round(mark.f1, 9)) != (run["em"], round(run["f1"], 9)):
                differing[run["pred"]] += 1
    assert set(differing) <= {""}  # the original has no guard for an empty answer


@pytest.mark.parametrize(
    ("file", "read", "repaired", "dropped"),
    [
        ("alpaca_format/hotpotqa.json", 500, 0, {}),
        ("gpt_format/hotpotqa.jsonl", 500, 0, {}),
        ("alpaca_format/hotpotqa_multimethod.json", 734, 0, {"failed": 40, "duplicate question": 5, LACKING: 1}),
        ("alpaca_format/multitask.json", 1344, 456, {"duplicate question": 1}),
        (
            "alpaca_format/multitask_multimethod.json",
            2063,
            708,
            {"failed": 49, "duplicate question": 282, LACKING: 7},
        ),
    ],
)
def test_the_released_expert_files_are_read_with_the_known_counts(
    file: str, read: int, repaired: int, dropped: Any
) -> None:
    experts, audit = read_experts(real(f"fireact/{file}"))
    assert (audit.read, audit.kept, sum(audit.repaired.values())) == (read, len(experts), repaired)
    assert audit.dropped == dropped
    for expert in experts:
        assert score(expert.answer, expert.question).reward == 1
        assert "Episode finished" not in json.dumps([part.model_dump() for part in expert.rounds])
        assert not expert.question.question.endswith("\n")


def test_both_formats_contain_the_same_experts() -> None:
    one, _ = read_experts(real("fireact/alpaca_format/hotpotqa.json"))
    other, _ = read_experts(real("fireact/gpt_format/hotpotqa.jsonl"))
    assert [expert.rounds for expert in one] == [expert.rounds for expert in other]
    questions = [[expert.question.question.strip() for expert in experts] for experts in (one, other)]
    assert questions[0] == questions[1]


def test_scripted_experts_of_300_training_questions_have_read_every_paragraph() -> None:
    rows = list(read_records(real("hotpotqa/train300_context.jsonl")))
    corpus = context_paragraphs(rows)
    text = {paragraph.title: cut_near(paragraph.text) for paragraph in corpus}
    quests = [hotpotqa_quest(read_question(row, place)) for place, row in rows]
    experts, audit = scripted_experts(quests, LocalSearch(corpus))
    assert (audit.read, audit.kept, audit.dropped) == (300, len(experts), {"paragraph not found": 300 - len(experts)})
    assert len(experts) > 200
    for expert in experts:
        assert [part.observation for part in expert.rounds[:-1]] == [text[t] for t in expert.question.titles]
        assert expert.source == "scripted"


def test_replay_returns_the_recorded_snippet_for_over_95_percent_of_the_experts_queries() -> None:
    search = ReplaySearch(read_snippets(real("fireact/search_snippets.jsonl")))
    experts, _ = read_experts(real("fireact/alpaca_format/hotpotqa.json"))
    asked = [part for expert in experts for part in expert.rounds[:-1] if part.observation != "None"]
    same = [search(part.action[7:-1]) == " ".join((part.observation or "").split()) for part in asked]
    assert sum(same) / len(same) > 0.95
    plots = search("The Misadventures of Merlin Jones plot")
    assert plots is not None
    assert len(plots) > 400  # recorded snippets are returned whole; only paragraphs are cut
