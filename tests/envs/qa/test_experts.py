import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Paragraph, Question
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.expert_files import ExpertAudit, read_experts, scripted_experts
from selfimprove.envs.qa.experts import Lookup, Quest, demonstrate, hotpotqa_quest
from selfimprove.envs.qa.hotpotqa import context_paragraphs, read_question
from selfimprove.envs.qa.tools.bm25 import LocalSearch
from selfimprove.methods.spin.prompts import NEUTRAL, written

GOOD = (
    "Thought: I need Tolma.\nAction: search[Tolma]\nObservation: Tolma is a town.\n\nof two parts.\n"
    "Thought: So it is a\ntown.\nAction: finish[a town]\nObservation: Episode finished, reward = True\n"
)
LACKING = "a round lacks its thought, action or observation"
ENDED = "\nObservation: Episode finished, reward = 1"


def alpaca(question: Any, output: Any, **more: Any) -> Any:
    return {"instruction": question, "input": "", "output": output, **more}


def read(tmp_path: Path, rows: Any, **options: Any) -> Any:
    file = tmp_path / "experts.json"
    file.write_text(json.dumps(rows))
    return read_experts(file, **options)


def test_a_trajectory_is_read_and_its_terminal_line_removed(tmp_path: Path) -> None:
    (expert,), audit = read(tmp_path, [alpaca("What is Tolma?", GOOD)])
    assert expert.question.question == "What is Tolma?"
    assert expert.question.gold == expert.answer == "a town"
    assert [part.thought for part in expert.rounds] == ["I need Tolma.", "So it is a\ntown."]
    assert [part.action for part in expert.rounds] == ["search[Tolma]", "finish[a town]"]
    assert [part.observation for part in expert.rounds] == ["Tolma is a town.\n\nof two parts.", None]
    assert expert.source == "gpt-4"
    assert (audit.read, audit.kept, audit.dropped, audit.repaired) == (1, 1, {}, {})


def test_chat_rows_give_the_same_experts_as_alpaca_rows(tmp_path: Path) -> None:
    parts = [
        ("user", "What is Tolma?"),
        ("assistant", "Thought: I need Tolma.\nAction: search[Tolma]"),
        ("user", "Observation: Tolma is a town.\n\nof two parts."),
        ("assistant", "Thought: So it is a\ntown.\nAction: finish[a town]"),
        ("user", "Observation: Episode finished, reward = True"),
    ]
    chat = {"messages": [{"role": role, "content": content} for role, content in parts]}
    assert read(tmp_path, [chat])[0] == read(tmp_path, [alpaca("What is Tolma?", GOOD)])[0]
    chat["messages"].insert(0, {"role": "system", "content": "Be good."})
    assert read(tmp_path, [chat])[0] == read(tmp_path, [alpaca("What is Tolma?", GOOD)])[0]


def test_question_lines_that_slipped_into_the_output_are_moved_back(tmp_path: Path) -> None:
    options = "A. making\nB. eating\nC. crying\nD. noting\n"
    rows = [alpaca("Question: What is D?", options + GOOD.replace("a town]", "D]"))]
    rows += [alpaca("Is it so", "or not?\n" + GOOD), alpaca("Which?\n" + options.strip(), GOOD)]
    experts, audit = read(tmp_path, rows)
    assert experts[0].question.question == "Question: What is D?\n" + options.strip()
    assert [expert.question.task for expert in experts] == ["mmlu", "hotpotqa", "mmlu"]
    assert experts[1].question.question == "Is it so\nor not?"
    assert experts[0].rounds[0].thought == "I need Tolma."
    assert audit.repaired == {"options moved back to the question": 1, "question continued in the output": 1}


def test_a_search_without_a_result_reads_as_in_the_policy_s_own_episodes(tmp_path: Path) -> None:
    """The release writes "None"; the text must not tell experts from the policy."""
    nothing = GOOD.replace("Tolma is a town.\n\nof two parts.", "None")
    experts, _ = read(tmp_path, [alpaca("Is it so?", nothing)])
    seen = [message.content for message in written(experts[0].rounds, "alpaca") if message.role == "user"]
    assert seen == [f" {NEUTRAL}"]


def test_a_question_repeated_at_the_start_of_the_output_is_asked_once(tmp_path: Path) -> None:
    rows = [alpaca("Is it so?", GOOD), alpaca("Is it so?", "Yes or no: Is it so?\n" + GOOD)]
    rows += [alpaca("Is Tolma?", "Is Tolma?\n" + GOOD), alpaca("so?", "or also?\n" + GOOD)]
    experts, audit = read(tmp_path, rows)
    assert [expert.question.question for expert in experts] == ["Is it so?", "Is Tolma?", "so?\nor also?"]
    assert audit.repaired == {"question repeated in the output": 2, "question continued in the output": 1}
    assert audit.dropped == {"duplicate question": 1}


def test_a_question_with_very_many_options_is_read(tmp_path: Path) -> None:
    """In cubic time, as it once was, this question would take hours."""
    experts, _ = read(tmp_path, [alpaca("A. one\nB. two\n" * 10_000, GOOD)])
    assert experts[0].question.task == "hotpotqa"


def test_an_answer_that_spells_out_an_option_has_its_letter_as_gold(tmp_path: Path) -> None:
    options = "A. making\nB. eating\nC. crying\nD. noting"
    answers = ("B. eating", "A, D")
    rows = [alpaca(f"Question: {answer}?\n{options}", GOOD.replace("a town]", f"{answer}]")) for answer in answers]
    for expert, letter in zip(read(tmp_path, rows)[0], "BA", strict=True):
        assert expert.question.gold == letter
        assert score(expert.answer, expert.question).reward == score(letter, expert.question).reward == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (alpaca("q", GOOD.replace("True", "False")), "failed"),
        (alpaca("q", GOOD.replace("True", "0")), "failed"),
        (alpaca("q", GOOD.partition("\nObservation: Episode")[0]), "no end"),
        (alpaca("q", "It is a town."), "no rounds"),
        (alpaca("q", ""), "no rounds"),
        (alpaca("q", "Action: finish[x]" + ENDED), LACKING),
        (alpaca("q", "Thought: t\nAction: search[x]\nThought: u\nAction: finish[x]" + ENDED), LACKING),
        (
            alpaca("q", "Thought: t\nThought: u\nAction: finish[x]" + ENDED),
            LACKING,
        ),
        (alpaca("q", "Thought: t\nAction: finish x" + ENDED), "a round is no thought with one action"),
        (alpaca("q", "Thought:\nAction: finish[x]" + ENDED), "a round is no thought with one action"),
        (alpaca("q", "Thought: t\nAction: finish[]" + ENDED), "empty answer"),
        (alpaca("q", "Thought: t\nAction: search[x]" + ENDED), "a round is no thought with one action"),
        (alpaca("q", GOOD.replace("search[Tolma]", "look up[Tolma]")), "a round is no thought with one action"),
        (alpaca("What is Tolma?", GOOD), "duplicate question"),
        (alpaca("what is  Tolma? ", GOOD), "duplicate question"),
        ({"instruction": "q"}, "malformed row"),
        ({"instruction": None, "input": "", "output": GOOD}, "malformed row"),
        ({"messages": [{"role": "user"}]}, "malformed row"),
        ({"messages": "x"}, "malformed row"),
        ({}, "malformed row"),
    ],
)
def test_unusable_rows_are_dropped_and_counted_by_reason(tmp_path: Path, row: Any, reason: Any) -> None:
    experts, audit = read(tmp_path, [alpaca("What is Tolma?", GOOD), row])
    assert len(experts) == audit.kept == 1
    assert audit.dropped == {reason: 1}
    assert audit.places == {reason: [1]}


def test_the_audit_counts_all_dropped_rows_and_lists_the_first_20(tmp_path: Path) -> None:
    _, audit = read(tmp_path, [alpaca("What is Tolma?", GOOD), *[alpaca("q", "")] * 25])
    assert audit.dropped == {"no rounds": 25}
    assert audit.places == {"no rounds": list(range(1, 21))}


def test_answers_without_a_search_are_counted_and_dropped_on_request(tmp_path: Path) -> None:
    rows = [alpaca("q", "Thought: t\nAction: finish[x]" + ENDED), alpaca("r", GOOD)]
    experts, audit = read(tmp_path, rows)
    assert (len(experts), audit.without_search, audit.dropped) == (2, 1, {})
    experts, audit = read(tmp_path, rows, searching=True)
    assert [expert.question.question for expert in experts] == ["r"]
    assert audit.dropped == {"no search": 1}


def test_the_case_of_tool_names_in_experts_is_ignored_as_it_is_for_the_policy(tmp_path: Path) -> None:
    (expert,), _ = read(tmp_path, [alpaca("q", GOOD.replace("search[", "Search [").replace("finish[", "FINISH["))])
    assert [part.action for part in expert.rounds] == ["Search [Tolma]", "FINISH[a town]"]
    assert expert.question.gold == expert.answer == "a town"


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", json.dumps([alpaca("q", "nothing")])])
def test_a_file_without_a_usable_row_is_an_error_that_names_it(tmp_path: Path, content: Any) -> None:
    (tmp_path / "experts.json").write_text(content)
    with pytest.raises(UserError, match=r"experts\.json"):
        read_experts(tmp_path / "experts.json")


@given(st.text(max_size=60) | st.lists(st.sampled_from(GOOD.splitlines()), max_size=8).map("\n".join))
def test_any_output_is_kept_whole_or_dropped(tmp_path_factory: pytest.TempPathFactory, output: Any) -> None:
    folder = tmp_path_factory.mktemp("experts")
    experts, audit = read(folder, [alpaca("What is Tolma?", GOOD), alpaca("q", output)])
    assert audit.read == 2 == audit.kept + sum(audit.dropped.values())
    for expert in experts:
        assert expert.rounds[-1].action == f"finish[{expert.answer}]"
        assert all(part.observation is not None for part in expert.rounds[:-1])


# --- scripted experts ------------------------------------------------------------------------------------------------

ROW = {
    "id": "5a",
    "question": "Where was the author born?",
    "answer": "Tolma",
    "supporting_facts": [["The Gate", 0], ["Mara Venn", 1], ["The Gate", 1]],
    "context": [
        ["Mara Venn", ["Mara Venn is a poet.", " She is from Tolma."]],
        ["The Gate", ["The Gate is by Mara Venn."]],
    ],
}


def test_a_scripted_expert_searches_each_gold_title_and_finishes_with_the_answer() -> None:
    search = LocalSearch(context_paragraphs([("here", ROW)]))
    expert = demonstrate(hotpotqa_quest(read_question(ROW, "here")), search)
    assert [part.action for part in expert.rounds] == ["search[The Gate]", "search[Mara Venn]", "finish[Tolma]"]
    assert expert.rounds[1].observation == "Mara Venn is a poet. She is from Tolma."
    assert expert.rounds[2].observation is None
    assert expert.source == "scripted"
    assert expert == demonstrate(hotpotqa_quest(read_question(ROW, "here")), search)


def test_scripted_experts_that_would_have_to_guess_are_omitted_and_counted() -> None:
    corpus = context_paragraphs([("here", ROW)])
    lost = {**ROW, "id": "5b", "supporting_facts": [["The Gate", 0], ["Mara Vann", 0]]}
    quests = [hotpotqa_quest(read_question(row, "here")) for row in (ROW, lost)]
    experts, audit = scripted_experts(quests, LocalSearch(corpus))
    assert [expert.question.id for expert in experts] == ["hotpotqa-5a"]
    assert (audit.read, audit.kept, audit.dropped) == (2, 1, {"paragraph not found": 1})
    assert audit.places == {"paragraph not found": [1]}
    with pytest.raises(UserError, match=r"facts.py: no scripted expert's searches find its paragraphs"):
        scripted_experts(quests[1:], LocalSearch(corpus), file="facts.py")


def test_the_audits_of_two_files_add_up_and_keep_their_reasons_apart() -> None:
    one = ExpertAudit(file="a.json", read=4, kept=2, without_search=1, repaired={"options": 1}, dropped={"failed": 2})
    theirs: dict[str, Any] = {"repaired": {"options": 2}, "dropped": {"failed": 1}, "places": {"failed": [0]}}
    other = ExpertAudit(file="b", read=3, kept=2, **theirs)
    assert one.joined(other) == ExpertAudit(
        file="a.json, b", read=7, kept=4, without_search=1, repaired={"options": 3},
        dropped={"failed": 2, "b: failed": 1}, places={"b: failed": [0]},
    )  # fmt: skip


def test_contexts_form_a_corpus_with_each_title_once() -> None:
    again = {"context": [["The Gate", ["Another text."]], ["New", ["Text."]]]}
    corpus = context_paragraphs([("a", ROW), ("b", again)])
    assert [paragraph.title for paragraph in corpus] == ["Mara Venn", "The Gate", "New"]
    assert corpus[1] == Paragraph(title="The Gate", text="The Gate is by Mara Venn.")
    for context in ([["t"]], "x", [[1, ["s"]]], None):
        with pytest.raises(UserError, match=r"line 3: 'context' must hold"):
            context_paragraphs([("line 3", {"context": context})])


def test_a_plan_that_finds_nothing_or_earns_no_reward_is_refused() -> None:
    question = Question(id="q", task="hotpotqa", question="Where?", gold="Tolma", titles=["The Gate"])
    lookup = Lookup("I look.", "The Gate", "The Gate")
    with pytest.raises(UserError, match=r"question q: the search returns nothing for 'The Gate'"):
        demonstrate(Quest(question, (lookup,), "So."), lambda _: None)
    empty = question.model_copy(update={"gold": " "})
    with pytest.raises(UserError, match=r"question q: the gold answer ' ' earns no reward"):
        demonstrate(Quest(empty, (lookup,), "So."), lambda _: "found")
    with pytest.raises(UserError, match=r"question q has no supporting_facts"):
        hotpotqa_quest(question.model_copy(update={"titles": []}))
