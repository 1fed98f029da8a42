"""Episodes as the README's trajectory JSON and trajectories as Alpaca rows, byte for byte (docs/spin.md, S42, S43)."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.convert import alpaca_row
from selfimprove.methods.spin.trajectory import read_trajectories, to_entry, to_json, trajectory
from tests.methods.spin.episodes import REPLIES, played

FILE = Path(__file__).with_name("readme_sample.json")
SAMPLE = json.loads(FILE.read_text())["3687"]
FOUND = (
    "The fugitive is only helped by his sweetheart ( Irene Jacob ). The picture is the following to \u00a8The "
    "fugitive\u00a8 ( by Andrew Davis ) that's an adaptation based on ..."
)


def sample_episode(**more: Any) -> Any:
    """The README's episode, replayed by a scripted policy."""
    lines = SAMPLE["traj_by_line"]
    asked = Question(id="h", task="hotpotqa", question=lines[3], gold="Beyond the Clouds")
    replies = [f"{lines[6].removeprefix('Thought:')}\n{lines[7]}", f"{lines[9].removeprefix('Thought:')}\n{lines[10]}"]
    return played(replies, question=asked, index=3687, search=lambda query: FOUND, **more)


def test_the_readmes_sample_is_written_byte_for_byte() -> None:
    entry = to_json([sample_episode()])["3687"]
    assert {key: entry.pop(key) for key in ("finished", "steps", "iteration")} == {
        "finished": True, "steps": 2, "iteration": "",
    }  # fmt: skip
    assert json.dumps({"3687": entry}, indent=2) + "\n" == FILE.read_text()


def test_an_unfinished_episode_is_written_with_reward_false_and_pred_empty() -> None:
    entry = to_entry(played([REPLIES[0]] * 20))
    assert (entry["reward"], entry["em"], entry["f1"], entry["pred"], entry["finished"]) == (False, False, 0, "", False)
    assert entry["steps"] == 11
    assert "Episode finished" not in entry["traj"]
    assert entry["traj_by_line"][-1] == ""


def test_a_partly_correct_answer_is_written_with_its_f1() -> None:
    entry = to_entry(played([" t\nAction: finish[Tolma town]"]))
    assert (entry["reward"], entry["em"], entry["pred"]) == (False, False, "tolma town")
    assert entry["f1"] == pytest.approx(2 / 3)


def test_a_failed_round_is_written_as_in_fireact() -> None:
    entry = to_entry(played(lambda request, attempt: " I am not sure."))
    assert entry["traj_by_line"][-4:] == [
        "Thought: failed", "Action: finish[]", "Observation: Episode finished, reward = False", "",
    ]  # fmt: skip
    assert (entry["reward"], entry["pred"], entry["finished"]) == (False, "", False)


def test_the_added_fields_tell_whether_the_policy_finished_its_rounds_and_the_iteration() -> None:
    played_out, cut = sample_episode(iteration="iter2"), played([REPLIES[0]] * 3, iteration="iter0", max_turns=3)
    entries = [to_entry(played_out), to_entry(cut)]
    told = [tuple(entry[key] for key in ("finished", "steps", "iteration")) for entry in entries]
    assert told == [(True, 2, "iter2"), (False, 3, "iter0")]


def test_without_evaluation_the_scores_are_null() -> None:
    entry = to_entry(sample_episode(evaluate=False))
    assert (entry["reward"], entry["em"], entry["f1"]) == (None, None, None)
    assert entry["traj"].endswith("Observation: Episode finished, reward = None\n")


def test_the_few_shot_text_is_stored_as_the_prompt_and_not_in_the_trajectory() -> None:
    entry = to_entry(sample_episode(few_shot="Question: x\nThought: y\nAction: finish[z]"))
    assert entry["prompt"] == "Question: x\nThought: y\nAction: finish[z]"
    assert entry["traj"] == SAMPLE["traj"]
    assert to_entry(played(form="chat", few_shot="Question: x"))["prompt"] == "Question: x"
    assert to_entry(played(form="chat"))["prompt"] == ""


@pytest.mark.parametrize("form", ["question", "chat"])
def test_trajectories_in_other_formats_begin_with_the_question_line(form: Any) -> None:
    text = trajectory(played(form=form))
    assert text.startswith("In which town was the author of The Silver Gate born?\nThought: I need the author.\n")
    assert text.endswith("Action: finish[Tolma]\nObservation: Episode finished, reward = True\n")


def test_two_runs_of_a_task_in_one_file_are_refused() -> None:
    with pytest.raises(UserError, match="task 0 was played more than once"):
        to_json([played(), played(run=1)])


def test_plain_spins_answers_are_refused() -> None:
    with pytest.raises(UserError, match=r"^task 0: plain SPIN's answers have no rounds, .* export the pairs instead"):
        to_json([played(["She was born"], form="reply")])


def test_a_trajectory_file_reads_back_and_a_faulty_one_is_reported(tmp_path: Path) -> None:
    assert read_trajectories(FILE) == {"3687": SAMPLE}
    for text, words in (
        ("{", "is not JSON"), ("[]", "expected an object"), ("{}", "contains no episodes"),
        ('{"5": {}}', "task 5: no 'traj'"), ('{"5": 3}', "task 5: no 'traj'"),
    ):  # fmt: skip
        path = tmp_path / "bad.json"
        path.write_text(text)
        with pytest.raises(UserError, match=words):
            read_trajectories(path)
    with pytest.raises(UserError, match="does not exist"):
        read_trajectories(tmp_path / "none.json")


def test_parity_mode_gives_the_originals_row_and_self_play_mode_omits_the_terminal_line() -> None:
    parity, self_play = (alpaca_row(SAMPLE["traj"], mode) for mode in ("parity", "self_play"))
    assert parity == {
        "instruction": SAMPLE["traj_by_line"][3],
        "input": "",
        "output": "\n".join(SAMPLE["traj_by_line"][6:]),
    }
    assert SAMPLE["traj"].endswith(parity["output"])
    assert self_play["output"] == "\n".join(SAMPLE["traj_by_line"][6:11])
    assert self_play["output"].endswith("Action: finish[The Fugitive]")


def test_multi_line_instructions_stay_whole() -> None:
    """The original counts lines, so MMLU's options end up in the output."""
    asked = Question(id="m", task="mmlu", question="Question: Why?\nA. a\nB. b\nC. c\nD. d", gold="C")
    row = alpaca_row(trajectory(played([" t\nAction: finish[C]"], question=asked)), "parity")
    assert row["instruction"] == asked.question
    assert row["output"] == "Thought: t\nAction: finish[C]\nObservation: Episode finished, reward = True\n"


def test_an_unfinished_trajectory_keeps_its_last_observation() -> None:
    row = alpaca_row(trajectory(played([REPLIES[0]] * 2, max_turns=2)), "self_play")
    assert row["output"].endswith("Observation: The Silver Gate is a novel by Mara Venn.")


def test_a_text_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="Instruction"):
        alpaca_row("Question: x\nThought: y\n", "parity")
