"""Export to and import from the released code's formats (docs/rise.md, R36)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import Episode, Example, Message, read_jsonl, write_jsonl
from selfimprove.envs.math.world import make_env
from selfimprove.interop.rise import from_log, to_dataset, to_log
from selfimprove.methods.rise.convert import convert
from selfimprove.methods.rise.metrics import evaluate_metrics
from selfimprove.methods.rise.params import ConvertParams
from selfimprove.methods.rise.prompts import EXAMPLE_ANSWER, feedback, opening
from tests.methods.rise.episodes import QUESTION, attempt, episode, run

FIELDS = {"task_id", "query", "answer", "max_reward", "turn_history", "dialogue"}
OURS = {"id", "env", "seed", "model", "answers", "status", "omitted", "run"}
HISTORY = {"best_actions", "actions", "best_observations", "observations", "best_rewards", "rewards"}

TWO_TURNS = episode(
    [attempt(-1, "?"), attempt(0, r"\boxed{70}", answer="70")],
    [attempt(0, r"\boxed{71}", answer="71"), attempt(1, r"\boxed{72}", answer="72")],
)


def test_a_log_has_the_original_s_schema_and_our_additional_fields() -> None:
    log = to_log([TWO_TURNS, run(0)])
    assert list(log) == ["0", "1"]
    entry = log["0"]
    assert set(entry) == FIELDS | OURS
    assert entry["answer"] == "#### 72"
    assert entry["max_reward"] == 1
    history = entry["turn_history"]
    assert set(history) == HISTORY
    assert history["actions"] == {"0": ["?", r"\boxed{70}"], "1": [r"\boxed{71}", r"\boxed{72}"]}
    assert history["rewards"] == {"0": [-1, 0], "1": [0, 1]}
    assert history["best_actions"] == [r"\boxed{70}", r"\boxed{72}"]
    assert history["best_rewards"] == [0, 1]
    assert history["best_observations"] == [turn.observation for turn in TWO_TURNS.turns]
    assert history["observations"] == {"0": [feedback(0, QUESTION)] * 2, "1": [feedback(r, QUESTION) for r in (0, 1)]}
    assert entry["answers"] == {"0": [None, "70"], "1": ["71", "72"]}


def test_dialogue_is_the_last_prompt_without_the_last_action() -> None:
    dialogue = to_log([TWO_TURNS])["0"]["dialogue"]
    assert [m["role"] for m in dialogue] == ["user", "agent", "user", "agent", "user"]
    assert dialogue[3]["content"] == r"\boxed{70}"
    assert dialogue[-1]["content"] == TWO_TURNS.turns[0].observation


def test_a_dialogue_whose_last_model_is_behind_an_api_has_the_role_assistant(tmp_path: Path) -> None:
    one = run(0, 1)
    for turn, model in zip(one.turns, ("student", "teacher"), strict=True):
        turn.model = model
    for api, role in (((), "agent"), (("student",), "agent"), (("student", "teacher"), "assistant")):
        roles = [message["role"] for message in to_log([one], api)["0"]["dialogue"]]
        assert roles == ["user", role, "user", role, "user"]
    write_jsonl(tmp_path / "e.jsonl", [one])
    assert call("log", tmp_path / "e.jsonl", tmp_path / "log.json", "--api", "teacher").returncode == 0
    assert json.loads((tmp_path / "log.json").read_text()) == to_log([one], ["teacher"])
    wrong = call("log", tmp_path / "e.jsonl", tmp_path / "none.json", "--api", "teacher", "--api", "techer")
    assert (wrong.returncode, (tmp_path / "none.json").exists()) == (2, False)
    assert "e.jsonl has no turn by 'techer' (but by: student, teacher); fix the name" in wrong.stderr


def test_blocked_turns_are_logged_as_in_the_original() -> None:
    first = run(id="p", status="blocked")
    entry = to_log([first])["0"]
    assert entry["max_reward"] is None
    assert entry["turn_history"] == {
        "best_actions": [],
        "actions": {"0": ["blocked"]},
        "best_observations": [],
        "observations": {},
        "best_rewards": [],
        "rewards": {"0": [None]},
    }
    later = run(0, id="p", status="blocked")
    told = later.turns[0].observation
    entry = to_log([later])["0"]
    assert entry["max_reward"] == 0
    assert entry["turn_history"] == {
        "best_actions": ["try 0: 0"],
        "actions": {"0": ["try 0: 0"], "1": ["blocked"]},
        "best_observations": [told],
        "observations": {"0": [told]},
        "best_rewards": [0],
        "rewards": {"0": [0], "1": [None]},
    }
    assert [m["content"] for m in entry["dialogue"][3:]] == ["try 0: 0", told]
    unscored = episode(attempt(0, "try 0: 0"), attempt(None, "?"), id="p", status="blocked")
    assert to_log([unscored]) == to_log([later])
    later.turns[0].omitted = 2
    for one in (first, later):
        assert from_log(to_log([one]), "log") == [one]


def test_the_dialogue_excludes_messages_that_the_last_prompt_omitted() -> None:
    one = run(0, 0, 0, 1, id="p")
    one.turns[2].omitted, one.turns[3].omitted = 2, 4
    entry = to_log([one])["0"]
    assert [m["content"] for m in entry["dialogue"]] == [
        *(message.content for message in one.prompt), "try 2: 0", one.turns[2].observation,
    ]  # fmt: skip
    assert from_log(to_log([one]), "log") == [one]


def test_all_first_attempts_of_a_parallel_run_are_logged_with_negative_feedback() -> None:
    one = episode(attempt(0, "a"), id="p")
    one.turns[0].attempts = [attempt(0, "a"), attempt(1, "b"), attempt(1, "c")]
    one.turns[0].observation = ""
    history = to_log([one])["0"]["turn_history"]
    assert history["observations"] == {"0": [feedback(0, one.query)] * 3}
    assert history["best_observations"] == [feedback(0, one.query)]
    assert to_log([one])["0"]["max_reward"] == 1


def original(*episodes: Any) -> Any:
    """The log as the original writes it, without our additional fields."""
    log = to_log(episodes)
    return {key: {name: value for name, value in entry.items() if name in FIELDS} for key, entry in log.items()}


def test_attempts_of_an_original_s_blocked_entry_stay_out_of_the_prompt() -> None:
    said = ["example", "solution", "problem", "a", "no"]
    entry: dict[str, Any] = {
        "task_id": 0,
        "query": QUESTION,
        "answer": "#### 72",
        "max_reward": 0,
        "turn_history": {
            "best_actions": ["a"],
            "actions": {"0": ["a"], "1": ["blocked"]},
            "best_observations": ["no"],
            "observations": {"0": ["no"]},
            "best_rewards": [0],
            "rewards": {"0": [0], "1": [None]},
        },
        "dialogue": [{"role": ("user", "agent")[i % 2], "content": text} for i, text in enumerate(said)],
    }
    (one,) = from_log({"0": entry}, "log", "gsm8k")
    assert (one.status, one.rewards) == ("blocked", [0])
    assert [message.content for message in one.prompt] == said[:3]
    (row,) = to_dataset(convert([one], ConvertParams(), seed=0).examples)
    assert [message["value"] for message in row["conversations"]] == said[:4]
    assert to_log([one])["0"]["turn_history"] == entry["turn_history"]
    entry["turn_history"]["comment"] = "a reader of the released code ignores it"
    assert from_log({"0": entry}, "log", "gsm8k") == [one]
    assert to_log([one])["0"]["dialogue"] == entry["dialogue"]


@pytest.mark.parametrize("told", ["", None])
def test_logs_that_list_the_failed_turn_among_the_best_actions_can_be_read(told: str | None) -> None:
    blocked = run(0, status="blocked")
    log = original(blocked)
    history = log["0"]["turn_history"]
    for key, value in (("best_actions", "blocked"), ("best_observations", told), ("best_rewards", None)):
        history[key].append(value)
    history["observations"]["1"] = [told]
    (one,) = from_log(log, "log", "gsm8k")
    assert (one.status, one.prompt, one.rewards) == ("blocked", blocked.prompt, [0])


def test_an_attempt_that_repeats_the_worked_example_does_not_change_the_imported_prompt() -> None:
    for parrot in (
        episode(attempt(0, EXAMPLE_ANSWER)),
        episode(attempt(0, EXAMPLE_ANSWER), status="blocked"),
        episode(attempt(0, EXAMPLE_ANSWER), attempt(0, EXAMPLE_ANSWER), attempt(1)),
    ):
        assert from_log(original(parrot), "log", "gsm8k")[0].prompt == parrot.prompt


def test_attempts_of_a_cut_dialogue_are_never_taken_for_the_prompt() -> None:
    same = run(0, 0, 0, 0)
    for turn in same.turns:
        turn.attempts[0].text = "same"
    for kept in range(1, 9):  # messages kept after the worked example; 8 cuts only the problem of the blocked one
        for one in (same, same.model_copy(update={"status": "blocked"})):
            log = original(one)
            full = log["0"]["dialogue"]
            log["0"]["dialogue"] = full[:2] + full[2:][-kept:]
            assert from_log(log, "log", "gsm8k")[0].prompt == opening(QUESTION)


def test_a_cut_dialogue_keeps_its_own_worked_example() -> None:
    theirs = [Message(role="user", content="\nTheir instruction\n"), Message(role="assistant", content="Step 1")]
    one = run(0, 0, 0, 1)
    one.prompt = [*theirs, *opening(QUESTION, few_shot=False)]
    for first in (one.turns[0].attempt.text, "Step 1"):  # also if the first attempt repeats the example
        one.turns[0].attempt.text = first
        for kept in (1, 2, 3, 4):
            log = original(one)
            log["0"]["dialogue"][2:] = log["0"]["dialogue"][-kept:]
            assert from_log(log, "log", "gsm8k")[0].prompt == one.prompt


turns = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=3), max_size=4)


@given(st.lists(st.tuples(turns, st.booleans()), max_size=4), st.booleans())
def test_episodes_round_trip_through_a_log(runs: Any, few_shot: bool) -> None:
    episodes = [
        episode(
            *([attempt(r, f"t{t} s{s}: {r}") for s, r in enumerate(turn)] for t, turn in enumerate(one)),
            id=f"p{i}",
            prompt=opening(QUESTION, few_shot),
            status="blocked" if failed or not one else None,
        )
        for i, (one, failed) in enumerate(runs)
    ]
    log = json.loads(json.dumps(to_log(episodes)))
    assert from_log(log, "log") == episodes
    assert not any(None in entry["turn_history"]["best_rewards"] for entry in log.values())
    bare = from_log({key: {k: v for k, v in one.items() if k in FIELDS} for key, one in log.items()}, "log", "gsm8k")
    for one, read in zip(episodes, bare, strict=True):
        assert (read.status, read.prompt) == (one.status, one.prompt)
        assert [turn.attempt.text for turn in read.turns] == [turn.attempt.text for turn in one.turns]


def test_an_original_evaluation_log_without_a_dialogue_can_be_imported() -> None:
    log = to_log([TWO_TURNS])
    for key in OURS | {"dialogue"}:
        del log["0"][key]
    log["0"]["turn_history"]["observations"] = {}
    with pytest.raises(UserError, match=r"log\.json, entry 0: .*--env gsm8k"):
        from_log(log, "log.json")
    with pytest.raises(UserError, match=r"^log\.json, entry 0: answers can be .*, not for 'gms8k'"):
        from_log(log, "log.json", "gms8k")
    (one,) = from_log(log, "log.json", "gsm8k")
    assert one.prompt == opening(QUESTION)
    assert one.status == "solved"
    assert one.env == "gsm8k"
    assert [turn.attempt.answer for turn in one.turns] == ["70", "72"]
    assert one.id == from_log(log, "elsewhere", "gsm8k")[0].id


def test_attempts_that_the_original_scored_as_unparsable_have_no_vote() -> None:
    texts = [r"\boxed{18.0}", r"\boxed{1,8}", "18"]
    log = short_log(actions={"0": texts}, best_actions=texts[1:2], rewards={"0": [-1, 1, -1]})
    (one,) = from_log(log, "log", "gsm8k")
    assert [attempt.answer for attempt in one.turns[0].attempts] == [None, "18", None]
    assert evaluate_metrics([one], [one], make_env("gsm8k").equivalent)["m3@t1"]["mean"] == 1


def test_api_roles_are_accepted_and_a_cut_dialogue_s_opening_is_restored() -> None:
    log = to_log([TWO_TURNS])
    for message in log["0"]["dialogue"]:
        message["role"] = {"agent": "assistant"}.get(message["role"], message["role"])
    assert from_log(log, "log")[0].prompt == TWO_TURNS.prompt
    log["0"]["dialogue"] = log["0"]["dialogue"][-1:]
    assert from_log(log, "log")[0].prompt == opening(QUESTION)


def test_errors_in_malformed_logs_name_the_entry() -> None:
    log = to_log([TWO_TURNS])
    log["0"]["turn_history"]["rewards"]["1"] = [1.0]
    with pytest.raises(UserError, match=r"log\.json, entry 0: turn 1"):
        from_log(log, "log.json")
    with pytest.raises(UserError, match=r"log\.json: field '0\.query'"):
        from_log({"0": {key: value for key, value in log["0"].items() if key != "query"}}, "log.json")
    with pytest.raises(UserError, match=r"log\.json: field '5'"):
        from_log({"5": "text"}, "log.json")


def short_log(**changes: Any) -> dict[str, Any]:
    """A log of one turn with two samples of equal text."""
    history: dict[str, Any] = {"best_actions": ["a"], "actions": {"0": ["a", "a"]}, "rewards": {"0": [0, 1]}}
    history |= {"best_observations": ["o"], "best_rewards": [1]}
    history |= {key: value for key, value in changes.items() if key in history}
    others = {key: value for key, value in changes.items() if key not in history}
    return {"0": {"task_id": 0, "query": "q", "answer": "#### 1", "turn_history": history, **others}}


def test_an_environment_other_than_the_one_that_the_log_names_is_refused() -> None:
    log = to_log([TWO_TURNS])
    assert from_log(log, "log", TWO_TURNS.env) == from_log(log, "log")
    with pytest.raises(UserError, match=r"^log, entry 0: the log's environment is gsm8k, so --env maths cannot apply"):
        from_log(log, "log", "maths")


def test_of_two_samples_with_equal_text_the_one_with_the_best_reward_is_the_chosen_one() -> None:
    (one,) = from_log(short_log(), "log", "gsm8k")
    assert (one.turns[0].chosen, one.turns[0].attempt.reward, one.status) == (1, 1, "solved")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answers": {"0": ["1"]}}, "turn 0: the numbers of answers and actions differ"),
        ({"omitted": [-1]}, "omitted"),
        ({"best_observations": []}, "turn 0 has no observation"),
    ],
)
def test_a_log_with_inconsistent_parts_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        from_log(short_log(**changes), "log", "gsm8k")


def test_examples_are_written_in_the_original_s_dataset_schema() -> None:
    example = Example(
        id="identity_0",
        messages=[
            Message(role="user", content="q"),
            Message(role="assistant", content="a"),
            Message(role="user", content="no"),
            Message(role="assistant", content="b", weight=12.18),
        ],
    )
    assert to_dataset([example]) == [
        {
            "id": "identity_0",
            "conversations": [
                {"from": "human", "value": "q", "loss": 0.0},
                {"from": "gpt", "value": "a", "loss": 0.0},
                {"from": "human", "value": "no", "loss": 0.0},
                {"from": "gpt", "value": "b", "loss": 12.18},
            ],
        }
    ]


def call(*arguments: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "selfimprove.interop.rise", *map(str, arguments)], capture_output=True, text=True
    )


def test_the_command_line_exports_and_imports_and_reports_errors_in_one_line(tmp_path: Path) -> None:
    episodes, log, back = tmp_path / "e.jsonl", tmp_path / "5_turns.json", tmp_path / "sub" / "back.jsonl"
    write_jsonl(episodes, [TWO_TURNS])
    assert call("log", episodes, log).returncode == 0
    assert call("import-log", log, back).returncode == 0
    assert read_jsonl(back, Episode) == [TWO_TURNS]
    log.write_text("[1]")
    wrong = call("import-log", log, tmp_path / "none.jsonl")
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1
    assert "not a JSON object keyed by task index" in wrong.stderr
    log.write_text("{}")
    empty = call("import-log", log, tmp_path / "none.jsonl", "--env", "gsm8k")
    assert (empty.returncode, empty.stderr) == (2, f"{log} contains no episodes; name a log that has some.\n")
    assert not (tmp_path / "none.jsonl").exists()


def test_an_evaluations_runs_are_logged_apart_and_keep_their_names(tmp_path: Path) -> None:
    """The original writes a log for each; together, every task would have two entries."""
    runs = [run(0).model_copy(update={"run": name}) for name in ("sequential", "parallel")]
    write_jsonl(tmp_path / "episodes.jsonl", runs)
    for one in runs:
        assert call("log", tmp_path / "episodes.jsonl", tmp_path / "log.json", "--run", one.run).returncode == 0
        log = json.loads((tmp_path / "log.json").read_text())
        assert list(log) == ["0"]
        assert from_log(log, "log.json") == [one]
    refused = call("log", tmp_path / "episodes.jsonl", tmp_path / "log.json", "--run", "both")
    assert refused.returncode == 2
    assert "contains no episodes of the run 'both'; name another." in refused.stderr


def test_a_written_log_keeps_the_order_of_its_episodes(tmp_path: Path) -> None:
    episodes, log, back = tmp_path / "e.jsonl", tmp_path / "5_turns.json", tmp_path / "back.jsonl"
    write_jsonl(episodes, [TWO_TURNS.model_copy(update={"id": f"task-{i}"}) for i in range(12)])
    assert call("log", episodes, log).returncode == 0
    assert list(json.loads(log.read_text())) == [str(i) for i in range(12)]
    assert call("import-log", log, back).returncode == 0
    assert back.read_bytes() == episodes.read_bytes()


def test_a_question_that_occurs_twice_in_an_original_log_gets_two_ids() -> None:
    log = original(TWO_TURNS)
    log["1"] = log["0"]
    one, two = from_log(log, "log", "gsm8k")
    assert two.id == f"{one.id}-2"


def test_an_imported_original_log_drops_repeated_attempts_from_prompts_too() -> None:
    one = episode(*(attempt(0, text) for text in ("  a ", "b\n", "a", "")), attempt(1, "c"), id="p")
    (imported,) = from_log(original(one), "log", "gsm8k")
    told = {seed: to_dataset(convert([made], ConvertParams(shuffle=False), seed=0).examples) for seed, made in (
        ("", imported), ("7/p", one.model_copy(update={"seed": "7/p"})),
    )}  # fmt: skip
    no = feedback(0, one.query)
    last = {seed: [said["value"] for said in rows[-1]["conversations"]][3:] for seed, rows in told.items()}
    assert last == {
        "": ["a", no, "b", no, "c"],
        "7/p": ["  a ", no, "b\n", no, "a", no, "", no, "c"],  # our own episode keeps the prompt that the model saw
    }
    assert [len(rows) for rows in told.values()] == [3, 3]
