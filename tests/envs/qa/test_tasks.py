import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import TASKS, Question, duplicates
from selfimprove.envs.qa.datasets import load_questions, score
from selfimprove.envs.qa.hotpotqa import read_question, task_order
from selfimprove.envs.qa.mmlu import letter_of
from selfimprove.envs.qa.strategyqa import first_word


def question(task: Any, gold: Any) -> Question:
    return Question(id="q", task=task, question="?", gold=gold)


def test_hotpotqa_splits_keep_the_order_of_their_file(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": f"a{i}", "type": "bridge"} for i in range(5)]
    (tmp_path / "dev_simplified.json").write_text(json.dumps(rows))
    dev = load_questions("hotpotqa", "dev", tmp_path)
    assert [(q.question, q.gold, q.kind) for q in dev] == [(f"q{i}", f"a{i}", "bridge") for i in range(5)]
    assert len({q.id for q in dev}) == 5
    mark = score("The A3!", dev[3])
    assert (mark.reward, mark.em, mark.f1, mark.pred, mark.gt) == (1.0, True, 1.0, "a3", "a3")
    with pytest.raises(UserError, match=r"no split 'test' with answers; choose train or dev"):
        load_questions("hotpotqa", "test", tmp_path)
    with pytest.raises(UserError, match=r"train_simplified\.json does not exist"):
        load_questions("hotpotqa", "train", tmp_path)


def test_ids_survive_reordering_and_a_repeated_question_gets_its_own_id(tmp_path: Path) -> None:
    rows = [{"question": q, "answer": "a"} for q in ("x", "y", "x")]
    (tmp_path / "dev_simplified.json").write_text(json.dumps(rows))
    ids = [q.id for q in load_questions("hotpotqa", "dev", tmp_path)]
    assert ids[2] == ids[0] + "-2"
    (tmp_path / "dev_simplified.json").write_text(json.dumps(rows[::-1]))
    assert {q.id for q in load_questions("hotpotqa", "dev", tmp_path)} == set(ids)


def test_supporting_titles_are_listed_once_each_in_the_order_of_the_facts() -> None:
    row = {"id": "5a", "question": "q", "answer": "a", "supporting_facts": [["B", 0], ["A", 1], ["B", 2]]}
    assert read_question(row, "here").titles == ["B", "A"]
    assert read_question(row, "here").id == "hotpotqa-5a"
    assert read_question({"question": "q", "answer": "a", "gold_titles": ["A", "B"]}, "here").titles == ["A", "B"]


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        ("yes", "yes", 1),
        ("Yes, it will.", "yes", 1),
        ("YES!", "yes", 1),
        ("no.", "no", 1),
        ("not sure", "no", 0),  # a prefix is not a word
        ("nothing", "no", 0),
        ("yesterday", "yes", 0),
        ("It is so: yes", "yes", 0),  # the first word decides
        ("yes", "no", 0),
        ("true", "yes", 0),
        ("", "no", 0),
        ("...", "no", 0),
        ("No,it will", "no", 1),
        ("“Yes”, it can", "yes", 1),
        ("Yes…", "yes", 1),
        ("yes—because", "yes", 1),
        ("no-one knows", "no", 0),
        ("Yes/no", "yes", 0),
        ("no_answer", "no", 0),
        ("__no__", "no", 1),
    ],
)
def test_strategyqa_is_decided_by_the_first_word(answer: str, gold: str, reward: int) -> None:
    assert score(answer, question("strategyqa", gold)).reward == reward


def test_strategyqa_reads_booleans(tmp_path: Path) -> None:
    rows = [{"qid": "e0", "question": "Will it?", "answer": False}, {"question": "Is it?", "answer": True}]
    (tmp_path / "strategyqa_dev.json").write_text(json.dumps(rows))
    assert [q.gold for q in load_questions("strategyqa", "dev", tmp_path)] == ["no", "yes"]
    (tmp_path / "strategyqa_dev.json").write_text(json.dumps([{"question": "Will it?", "answer": "no"}]))
    with pytest.raises(UserError, match=r"strategyqa_dev\.json, item 0: field 'answer' must be true or false"):
        load_questions("strategyqa", "dev", tmp_path)
    (tmp_path / "strategyqa_test.json").write_text(json.dumps([{"question": "Will it?"}]))
    with pytest.raises(UserError, match="strategyqa has no split 'test' with answers; choose train or dev"):
        load_questions("strategyqa", "test", tmp_path)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        (" B. Because", "B"),
        ("B: eating", "B"),
        ("**B**", "B"),
        ("[B]", "B"),
        ("B eating", "B"),
        ("Both B and C", ""),  # the original reads B
        ("Because", ""),
        ("Dinosaurs", ""),
        ("A, D", "A"),  # a rewarded answer in FireAct's files
        ("A and B", "A"),
        ("a or b", "A"),
        ("B and C", "B"),
        ("B or C", "B"),
        ("B/C", ""),
        ("B / because", "B"),
        ("A cat", "A"),  # a separate letter counts even if it is an article
        ("a cat", "A"),
        ("A is right", "A"),
        ("A 5", "A"),
        ("A\nBecause", "A"),
        ("A because it is", "A"),
        ("A. Because the sky", "A"),
        ("D-Day", ""),
        ("B - because", "B"),
        ("b because it is", "B"),
        ("c is correct", "C"),
        ("A's", ""),
        ("'B'", "B"),  # quotation marks around a letter are ignored
        ("‘B’ because", "B"),
        ("__B__", "B"),
        ("_B_ is right", "B"),
        ("B_cell", ""),
        ("E", ""),
        ("The answer is B", ""),  # only a leading letter counts
        ("", ""),
        ("B2", ""),
        ("Bézier curve", ""),  # B is followed by a letter with an accent
        ("Cézanne", ""),
        ("Dürer", ""),
        ("Aя", ""),
    ],
)
def test_mmlu_is_decided_by_a_separate_leading_letter(answer: str, letter: str) -> None:
    assert letter_of(answer) == letter
    assert score(answer, question("mmlu", "B")).reward == float(letter == "B")


def test_mmlu_files_are_sorted_and_options_lettered(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "virology_test.csv").write_text("Why?,no,yes,maybe,never,B\n")
    (tmp_path / "test" / "anatomy_test.csv").write_text('"What, then?",1,2,"3, or 4",5,D\nWhen?,1,2,3,4,A\n')
    questions = load_questions("mmlu", "test", tmp_path)
    assert [(q.kind, q.gold) for q in questions] == [("anatomy", "D"), ("anatomy", "A"), ("virology", "B")]
    assert questions[0].question == "Question: What, then?\nA. 1\nB. 2\nC. 3, or 4\nD. 5"
    (tmp_path / "test" / "anatomy_test.csv").write_text("When?,1,2,3,4,A\nWhy?,1,2,3,4,E\n")
    with pytest.raises(UserError, match=r"anatomy_test\.csv, line 2: expected a question, four options and a letter"):
        load_questions("mmlu", "test", tmp_path)
    for line in (*(f"When?,1,2,3,4,{letters}" for letters in ("AB", "ABCD", "BC", "")), ",1,2,3,4,A", "When?,1,,3,4,A"):
        (tmp_path / "test" / "anatomy_test.csv").write_text(f"{line}\n")
        with pytest.raises(
            UserError, match=r"anatomy_test\.csv, line 1: expected a question, four options and a letter"
        ):
            load_questions("mmlu", "test", tmp_path)
    with pytest.raises(UserError, match=r"dev contains no \*\.csv"):
        load_questions("mmlu", "dev", tmp_path)


def test_mmlu_reads_each_split_from_the_folder_of_that_name_in_its_release(tmp_path: Path) -> None:
    for name in ("auxiliary_train", "dev", "val", "test"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"law_{name}.csv").write_text(f"In {name}?,1,2,3,4,A\n")
    first = [load_questions("mmlu", split, tmp_path)[0].question for split in ("train", "dev", "val", "test")]
    assert [text.partition("\n")[0] for text in first] == [
        "Question: In auxiliary_train?", "Question: In dev?", "Question: In val?", "Question: In test?",
    ]  # fmt: skip


def test_mmlu_reads_one_subject_s_split_by_the_original_s_name(tmp_path: Path) -> None:
    for split in ("test", "train"):
        (tmp_path / split).mkdir()
        for subject in ("law", "art"):
            (tmp_path / split / f"{subject}_{split}.csv").write_text(f"In {subject}?,1,2,3,4,A\n")
    assert [question.kind for question in load_questions("mmlu", "law_test", tmp_path)] == ["law"]
    assert [question.kind for question in load_questions("mmlu", "train", tmp_path)] == ["art", "law"]
    with pytest.raises(UserError, match=r"test/music_test\.csv does not exist; choose a subject"):
        load_questions("mmlu", "music_test", tmp_path)


def test_bamboogle_reads_its_csv_and_is_scored_as_hotpotqa(tmp_path: Path) -> None:
    (tmp_path / "bamboogle_test.csv").write_text('Question,Answer\nWhen?,"April 30, 1789"\nWho?,the Owl\n')
    questions = load_questions("bamboogle", "test", tmp_path)
    assert [q.gold for q in questions] == ["April 30, 1789", "the Owl"]
    assert score("owl", questions[1]).reward == 1
    assert score("april 1789", questions[0]).f1 == pytest.approx(0.8)
    (tmp_path / "bamboogle_test.csv").write_text("Question,Answer\nWhen?\n")
    with pytest.raises(UserError, match=r"bamboogle_test\.csv, line 2: expected a question and an answer"):
        load_questions("bamboogle", "test", tmp_path)
    for content in ("", "When?,1789\nWho?,the Owl\n"):
        (tmp_path / "bamboogle_test.csv").write_text(content)
        with pytest.raises(UserError, match=r"bamboogle_test\.csv: the first line must be the header Question,Answer"):
            load_questions("bamboogle", "test", tmp_path)


def test_a_csv_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "law_test.csv").write_text('"Why, so?",1,2,3,4,A\n', encoding="utf-8-sig")
    assert load_questions("mmlu", "test", tmp_path)[0].question.startswith("Question: Why, so?\n")
    (tmp_path / "bamboogle_test.csv").write_text("Question,Answer\nWho?,the Owl\n", encoding="utf-8-sig")
    assert load_questions("bamboogle", "test", tmp_path)[0].question == "Who?"


def test_an_unknown_task_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no task 'squad'.*hotpotqa, strategyqa, bamboogle, mmlu"):
        load_questions("squad", "dev", tmp_path)
    for task in TASKS:
        assert score("x", question(task, "y")).reward == 0


@pytest.mark.parametrize("content", ["", "{", '{"a": 1}', "[]", '["x"]', '[{"question": "q"}]', '[{"question": " "}]'])
def test_a_malformed_file_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "dev_simplified.json").write_text(content)
    with pytest.raises(UserError, match=r"dev_simplified\.json"):
        load_questions("hotpotqa", "dev", tmp_path)


def test_the_original_order_is_pythons_shuffle_with_seed_233() -> None:
    expected = list(range(7405))
    random.Random(233).shuffle(expected)
    assert task_order(7405) == expected
    assert task_order(7405)[:3] == [3687, 6238, 5388]  # 6238 is first in FireAct's released trajectories
    assert task_order(4, shuffled=False) == [0, 1, 2, 3]


def test_questions_in_two_splits_are_found_ignoring_case_and_spaces() -> None:
    splits = {"train": [Question(id="1", task="hotpotqa", question="Who  is IT?", gold="x")]}
    splits["test"] = [Question(id="2", task="hotpotqa", question="who is it?", gold="y")]
    assert duplicates(splits) == {"who is it?": ["train", "test"]}
    assert duplicates({"train": splits["train"]}) == {}


@given(st.text(max_size=30))
def test_any_answer_can_be_scored_under_every_task(answer: str) -> None:
    for task, gold in zip(TASKS, ("Tolma", "Tolma", "yes", "Tolma", "A", "Tolma"), strict=True):
        mark = score(answer, question(task, gold))
        assert mark.reward in (0.0, 1.0)
        assert mark.reward <= mark.f1 <= 1
    assert len(first_word(answer).split()) <= 1
