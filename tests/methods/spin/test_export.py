"""Files in the original's formats, from the command line (docs/spin.md, S42 to S44)."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import write_jsonl
from selfimprove.engines.base import EngineError, Request
from selfimprove.envs.qa.experts import Round
from selfimprove.interop.spin import app, pair_row, preferences, score_file
from selfimprove.methods.spin.convert import without_terminal
from selfimprove.methods.spin.pairs import spin_pairs
from selfimprove.methods.spin.params import ConvertParams
from selfimprove.methods.spin.prompts import alpaca
from selfimprove.methods.spin.trajectory import to_json
from tests.methods.spin.episodes import EXPERT, QUESTION, REPLIES, played
from tests.support.commands import ends_with

WRONG = [" t\nAction: finish[Kesby]"]


def run(*words: object) -> None:
    assert ends_with(app, *words) == 0, words


def fails(capsys: Any, *words: object) -> str:
    assert ends_with(app, *words) == 2
    return capsys.readouterr().err


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    write_jsonl(tmp_path / "right.jsonl", [played(), played(WRONG, index=1), played(index=2), played(WRONG, run=1)])
    write_jsonl(tmp_path / "wrong.jsonl", [played(WRONG), played(WRONG, index=1), played([REPLIES[0]] * 11, index=2)])
    for name in ("right", "wrong"):
        run("trajectories", tmp_path / f"{name}.jsonl", tmp_path / f"{name}.json")
    return {name: tmp_path / f"{name}.json" for name in ("right", "wrong")}


def test_a_trajectory_file_contains_the_first_run_of_every_task(files: dict[str, Path]) -> None:
    entries = json.loads(files["right"].read_text())
    assert list(entries) == ["0", "1", "2"]
    assert [entry["reward"] for entry in entries.values()] == [True, False, True]


def test_exporting_a_run_that_was_not_played_is_refused_and_writes_nothing(tmp_path: Path, capsys: Any) -> None:
    write_jsonl(tmp_path / "e.jsonl", [played(), played(WRONG, run=1)])
    for number in (9, -1):
        said = fails(capsys, "trajectories", tmp_path / "e.jsonl", tmp_path / "t.json", "--run", number)
        assert said.startswith(f"{tmp_path}/e.jsonl has no episodes of run {number}; set --run to at most 1.")
    assert not (tmp_path / "t.json").exists()


def test_an_episode_without_a_prompt_is_refused_by_its_line(tmp_path: Path, capsys: Any) -> None:
    write_jsonl(tmp_path / "e.jsonl", [played(), played(index=1)])
    first, second = (tmp_path / "e.jsonl").read_text().splitlines()
    (tmp_path / "e.jsonl").write_text(f"{first}\n{json.dumps({**json.loads(second), 'prompt': []})}\n")
    said = fails(capsys, "trajectories", tmp_path / "e.jsonl", tmp_path / "t.json")
    assert said.startswith(f"{tmp_path}/e.jsonl, line 2: field 'prompt': List should have at least 1 item")


def test_all_or_only_the_rewarded_trajectories_are_exported_as_alpaca_rows(
    files: dict[str, Path], tmp_path: Path
) -> None:
    run("alpaca", files["right"], tmp_path / "a.json", "--mode", "parity")
    run("alpaca", files["right"], tmp_path / "b.json", "--mode", "self_play", "--rewarded")
    rows, rewarded = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert len(rows) == 3
    assert rows[0]["output"].endswith("reward = True\n")
    assert [row["output"].rsplit("\n", 1)[1] for row in rewarded] == ["Action: finish[Tolma]"] * 2


def test_a_part_of_the_reward_is_not_the_reward(files: dict[str, Path], tmp_path: Path) -> None:
    entries = json.loads(files["right"].read_text())
    for entry, reward in zip(entries.values(), (0.5, 1.0, 0), strict=True):
        entry["reward"] = reward
    (tmp_path / "part.json").write_text(json.dumps(entries))
    run("alpaca", tmp_path / "part.json", tmp_path / "rows.json", "--mode", "self_play", "--rewarded")
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 1


def test_files_are_formatted_like_the_released_ones(files: dict[str, Path], tmp_path: Path) -> None:
    run("alpaca", files["right"], tmp_path / "a.json", "--mode", "parity")
    for path, indent in ((files["right"], 2), (tmp_path / "a.json", 4)):
        assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=indent)


def test_two_runs_give_preferences_for_the_tasks_with_different_rewards(files: dict[str, Path], tmp_path: Path) -> None:
    run("preferences", files["wrong"], files["right"], tmp_path / "dpo.json")
    rows = json.loads((tmp_path / "dpo.json").read_text())
    assert [(row["chosen"][-13:], "finish[Kesby]" in row["rejected"]) for row in rows] == [
        ("finish[Tolma]", True), ("finish[Tolma]", False),
    ]  # fmt: skip
    assert all(row["prompt"].endswith("### Response:\n") and "Thought" not in row["prompt"] for row in rows)


def test_pairs_are_exported_as_message_lists(tmp_path: Path) -> None:
    pairs, _ = spin_pairs([EXPERT], [played(WRONG)], ConvertParams(), "iter0")
    write_jsonl(tmp_path / "pairs.jsonl", pairs)
    run("pairs", tmp_path / "pairs.jsonl", tmp_path / "rows.jsonl")
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert [message["role"] for side in ("real", "generated") for message in row[side]] == ["user", "assistant"] * 2
    assert row["real"][0] == row["generated"][0]
    assert row["real"][0]["content"] == QUESTION.question  # the wrapper is left to the trainer
    assert row["generated"][1]["content"] == "Thought: t\nAction: finish[Kesby]"


@pytest.mark.parametrize("form", ["alpaca", "question", "chat"])
@pytest.mark.parametrize("shots", ["", "Question: x\nThought: y\nAction: finish[z]"])
def test_exported_pairs_have_the_bare_question_and_one_line_per_cue_in_every_format(form: Any, shots: Any) -> None:
    (pair,), _ = spin_pairs([EXPERT], [played(form=form, few_shot=shots)], ConvertParams(), "iter0")
    row = pair_row(pair)
    assert row["real"][0]["content"].startswith(shots)
    assert row["real"][0]["content"].removeprefix(shots).strip() == QUESTION.question
    assert row["real"][1]["content"].startswith("Thought: I need the author.\nAction: search[The Silver Gate]\nObs")
    assert row["real"][1]["content"].splitlines()[2:4] == [
        "Observation: The Silver Gate is a novel by Mara Venn.", "Thought: Mara Venn wrote it.",
    ]  # fmt: skip
    assert row["real"] == row["generated"]


def test_a_worked_example_keeps_its_own_wrapper() -> None:
    shots = f"{alpaca('Who?')}Thought: y\nAction: finish[z]"
    (pair,), _ = spin_pairs([EXPERT], [played(form="alpaca", few_shot=shots)], ConvertParams(), "iter0")
    assert pair_row(pair)["real"][0]["content"] == f"{shots}\n\n{QUESTION.question}"


def test_chat_turns_start_on_new_lines_even_next_to_spaces() -> None:
    question = QUESTION.model_copy(update={"question": " Who?"})
    shots = "Q\nThought: y\nAction: finish[z]"
    episode = played([" t\nAction: ", " u\nAction: finish[Tolma]"], form="chat", few_shot=shots, question=question)
    expert = EXPERT.model_copy(update={"question": question})
    (pair,), _ = spin_pairs([expert], [episode], ConvertParams(), "iter0")
    asked, told = pair_row(pair)["generated"]
    assert asked["content"] == f"{shots}\n Who?"
    assert told["content"] == "Thought: t\nAction: \nObservation: No result.\nThought: u\nAction: finish[Tolma]"


def test_exported_pairs_of_plain_spin_keep_the_exact_prompt() -> None:
    for text in ("How?\n", alpaca("Who?")):
        chat = QUESTION.model_copy(update={"question": text})
        expert = EXPERT.model_copy(update={"question": chat, "rounds": [Round(thought="So.", action="")]})
        (pair,), _ = spin_pairs([expert], [played(["No."], question=chat, form="reply")], ConvertParams(), "iter0")
        assert pair_row(pair)["real"] == [{"role": "user", "content": text}, {"role": "assistant", "content": "So."}]


def test_unscored_episodes_give_no_preferences() -> None:
    won, lost, unscored = (to_json([one]) for one in (played(), played(WRONG), played(evaluate=False)))
    assert len(preferences(won, lost, "here")) == 1
    assert preferences(won, unscored, "here") == preferences(unscored, lost, "here") == []


def test_a_file_is_scored_over_the_requested_number_of_tasks(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run("score", files["right"], "--requested", 4)
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["em"]["mean"], metrics["em"]["n"], metrics["missing"]) == (0.5, 4, 1)
    capsys.readouterr()
    run("score", files["right"])
    assert '"missing": 0' in capsys.readouterr().out
    assert "raise --requested" in fails(capsys, "score", files["right"], "--requested", 2)


def test_scoring_a_file_without_trajectories_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t.json").write_text("{}")
    for requested in ((), ("--requested", 4)):
        said = fails(capsys, "score", tmp_path / "t.json", *requested)
        assert said == f"{tmp_path}/t.json contains no episodes; name a trajectory file that has some.\n"


@pytest.mark.parametrize("bad", ['"yes"', "[1]", "1e400", "-1e400", "{}", '""', f"1{'0' * 400}"])
@pytest.mark.parametrize("field", ["em", "f1", "reward"])
def test_a_score_that_is_not_a_finite_number_is_reported_with_its_task(
    bad: str, field: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "t.json").write_text(f'{{"0": {{"traj": "x"}}, "7": {{"traj": "x", "{field}": {bad}}}}}')
    assert fails(capsys, "score", tmp_path / "t.json").startswith(f"task 7: '{field}' must be true, false, null or a")


def test_an_entry_that_is_not_an_object_is_reported_and_an_absent_score_is_0() -> None:
    with pytest.raises(UserError, match=r"^task 7: the entry is not an object"):
        score_file({"7": ["em"]}, 1)
    assert score_file({"7": {"reward": None, "em": True}}, 1)["reward"]["mean"] == 0.0


def test_a_score_that_no_episode_has_is_left_out() -> None:
    """The original writes no F1 for StrategyQA and MMLU, and no score at all without its option --evaluate."""
    scored = {"7": {"reward": 1, "em": 1, "gt": "b", "pred": "b"}, "8": {"reward": 0, "em": 0, "gt": "a", "pred": ""}}
    found = score_file(scored, 4)
    assert (found["em"]["mean"], found["reward"]["mean"], found["missing"]) == (0.25, 0.25, 2)
    assert "f1" not in found
    with pytest.raises(UserError, match=r"^no episode of the file has a score \(em, f1, reward\)"):
        score_file({"7": {"prompt": "", "traj": "Thought: …"}}, 1)


def test_a_target_that_cannot_be_written_is_reported_in_one_sentence(
    files: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "a.json").write_text("{}")
    for target in (tmp_path / "a.json/o.json", Path("/proc/foo/o.json"), tmp_path, Path(".")):
        said = fails(capsys, "alpaca", files["right"], target, "--mode", "parity")
        assert said.startswith(f"{target} ")
        assert len(said.splitlines()) == 1
    assert (tmp_path / "a.json").read_text() == "{}"


def test_every_terminal_line_is_removed_with_any_line_endings() -> None:
    over = "Observation: Episode finished, reward = False"
    for end in ("", "\n", "\n\n\n", "\r\n", "\r\n\r\n"):
        assert without_terminal(f"{over}{end}") == ""
        assert without_terminal(f"Action: finish[x]\n{over}{end}") == "Action: finish[x]"
        assert without_terminal(f"Action: finish[x]\r\n{over}{end}") == "Action: finish[x]"
        assert without_terminal(f"Action: finish[x]\n{over}\n{over}{end}") == "Action: finish[x]"
    assert (
        without_terminal("Action: search[x]\nObservation: No result.\n") == "Action: search[x]\nObservation: No result."
    )
    assert without_terminal("Action: finish[x]\nObservation: Episode finished, score=1\n") == "Action: finish[x]"
    assert without_terminal(f"Thought: {over}\nAction: x \n{over}\n") == f"Thought: {over}\nAction: x "


def test_a_trajectory_without_the_wrapper_is_refused_in_parity_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "chat.jsonl", [played(form="question")])
    run("trajectories", tmp_path / "chat.jsonl", tmp_path / "chat.json")
    said = fails(capsys, "alpaca", tmp_path / "chat.json", tmp_path / "out.json", "--mode", "parity")
    assert "task 0: the trajectory has no Alpaca wrapper" in said
    assert not (tmp_path / "out.json").exists()


def test_of_two_runs_with_partial_rewards_neither_is_preferred() -> None:
    """As in a foreign file; our own has true and false (docs/spin.md, S6)."""
    won, lost = to_json([played()]), to_json([played(WRONG)])
    part = {key: {**entry, "reward": 0.5} for key, entry in lost.items()}
    assert preferences(part, lost, "here") == []
    assert preferences(won, part, "here") == preferences(won, lost, "here") != []


def test_a_blocked_episode_and_one_without_a_round_are_not_preferred_against() -> None:
    """As in outcome pairs (docs/spin.md, S6): what an endpoint cut short is no failure of the policy."""

    def stopping(request: Request, attempt: int) -> str:
        if request.seed.turn:
            raise EngineError("endpoint gone")
        return REPLIES[0]

    cramped = played().model_copy(update={"rounds": [], "messages": [], "finished": False, "reward": 0.0})
    won, blocked, silent = (to_json([one]) for one in (played(), played(stopping), cramped))
    assert (blocked["0"]["reward"], blocked["0"]["blocked"], blocked["0"]["steps"]) == (False, True, 1)
    assert (silent["0"]["reward"], silent["0"]["steps"], "blocked" in silent["0"]) == (False, 0, False)
    assert preferences(won, blocked, "here") == preferences(won, silent, "here") == []


def test_an_export_without_a_row_is_refused(files: dict[str, Path], tmp_path: Path, capsys: Any) -> None:
    """It wrote an empty list, for example of two runs that have no task in common."""
    said = fails(capsys, "preferences", files["right"], files["right"], tmp_path / "out.json")
    assert said.startswith(f"{files['right']} and {files['right']} have no task with different rewards; name two runs")
    lost = {key: entry for key, entry in json.loads(files["wrong"].read_text()).items() if not entry["reward"]}
    (tmp_path / "lost.json").write_text(json.dumps(lost))
    said = fails(capsys, "alpaca", tmp_path / "lost.json", tmp_path / "out.json", "--mode", "parity", "--rewarded")
    assert said.startswith(f"{tmp_path}/lost.json contains no trajectory that earned the reward; name another, or omit")
    assert not (tmp_path / "out.json").exists()
