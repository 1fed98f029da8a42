"""The JSONL schema: records read back, equal records give equal bytes, invalid lines are reported."""

from __future__ import annotations

import math
import os
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Outcome, average
from selfimprove.core.records import (
    Attempt,
    Episode,
    Example,
    Message,
    Turn,
    dump_line,
    load_json,
    load_object,
    mean_and_error,
    only_regular,
    read_jsonl,
    read_number,
    read_object,
    read_records,
    read_rows,
    write_jsonl,
    write_rows,
)
from selfimprove.core.yaml import read_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.none() | st.lists(st.integers(0, 2**31), max_size=4)
FINISH = st.sampled_from([None, "stop", "length"])
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
WEIGHT = st.floats(0, allow_nan=False, allow_infinity=False)
MESSAGES = st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=TEXT, token_ids=IDS,
                     finish=FINISH, weight=WEIGHT)  # fmt: skip
ATTEMPTS = st.builds(Attempt, text=TEXT, reward=st.none() | FLOAT, answer=st.none() | TEXT, token_ids=IDS)
TURNS = st.builds(Turn, model=TEXT, attempts=st.lists(ATTEMPTS, min_size=1, max_size=2), chosen=st.just(0),
                  observation=TEXT)  # fmt: skip
EPISODES = st.builds(
    Episode, id=TEXT, env=TEXT, query=TEXT, gold=TEXT, prompt=st.lists(MESSAGES, max_size=2),
    turns=st.lists(TURNS, max_size=2), status=st.sampled_from(["solved", "unsolved", "blocked"]), seed=TEXT,
    error=st.none() | TEXT,
)  # fmt: skip
EXAMPLES = st.builds(Example, id=TEXT, messages=st.lists(MESSAGES, max_size=3), source=TEXT)


@given(episodes=st.lists(EPISODES, max_size=3), examples=st.lists(EXAMPLES, max_size=3))
def test_records_read_back_and_equal_records_give_equal_bytes(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode], examples: list[Example]
) -> None:
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    for kind, records in ((Episode, episodes), (Example, examples)):
        write_jsonl(path, records)
        first = path.read_bytes()
        assert first.count(b"\n") == len(records)
        back = read_jsonl(path, kind, may_be_empty=True)
        assert back == records
        write_jsonl(path, back)
        assert path.read_bytes() == first


@given(st.binary(max_size=60))
def test_any_bytes_give_rows_or_an_error_with_file_and_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("rows") / "r.jsonl"
    path.write_bytes(b'{"a": 1}\n' + data)
    rows: list[Any] = []
    said = f"{path}, line 2: "
    try:
        rows.extend(read_rows(path))
    except UserError as error:
        said = str(error)
    assert rows[0] == (1, {"a": 1})
    assert said.startswith(f"{path}, line ")
    assert int(said.removeprefix(f"{path}, line ").split(":")[0]) >= 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1', "not a whole JSON object (a torn line?); fix or delete the line"),
        ('{"a": NaN}', "not a whole JSON object"),
        ('{"a": Infinity}', "not a whole JSON object"),
        ("[" * 100_000, "not a whole JSON object"),
        ('"text"', "a JSON object was expected"),
    ],
)
def test_a_line_that_is_not_a_json_object_is_reported_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "r").write_text('{"a": 1}\n\n' + line + "\n")
    with pytest.raises(UserError) as caught:
        list(read_rows(tmp_path / "r"))
    assert f"{tmp_path / 'r'}, line 3: " in str(caught.value)
    assert said in str(caught.value)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"id": "a", "messages": [], "extra": 1}, "extra"),
        ({"id": "a"}, "messages"),
        ({"id": 3, "messages": []}, "id"),
        ({"id": "a", "messages": [USER, {"role": "judge", "content": "x"}]}, "messages.1.role"),
        ({"id": "a", "messages": [{"role": "user"}]}, "messages.0.content"),
    ],
)
def test_an_invalid_row_is_reported_with_line_and_field(tmp_path: Path, row: dict, field: str) -> None:
    write_rows(tmp_path / "r", [{"id": "fine", "messages": []}, row])
    with pytest.raises(UserError, match=rf"r, line 2: field '{field}': "):
        read_jsonl(tmp_path / "r", Example)


def test_missing_files_are_refused_and_so_are_empty_ones_unless_allowed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_jsonl(tmp_path / "r", Example)
    (tmp_path / "r").write_text("\n \n")
    with pytest.raises(UserError, match="is empty; add at least one row"):
        read_jsonl(tmp_path / "r", Example)
    assert read_jsonl(tmp_path / "r", Example, may_be_empty=True) == []


def test_errors_about_a_data_file_suggest_another_path_instead_of_a_change_in_params_yaml(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, remedy in (("none", "or fix the path."), ("empty", "or name another file.")):
        with pytest.raises(UserError) as refused:
            list(read_rows(tmp_path / name))
        assert str(refused.value).endswith(remedy)


def test_a_byte_order_mark_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n', encoding="utf-8-sig")
    with pytest.raises(UserError, match="line 1: the line begins with a byte order mark; save the file as UTF-8"):
        list(read_rows(tmp_path / "rows.jsonl"))


def test_a_folder_in_place_of_a_file_is_reported_as_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; name a file"):
        list(read_rows(tmp_path))
    with pytest.raises(UserError, match="is a folder, but must be a file"):
        read_yaml(tmp_path)


def test_infinite_numbers_are_refused_and_default_values_are_not_written() -> None:
    with pytest.raises(ValidationError):
        Message(role="user", content="", weight=math.inf)
    changed = Message(role="user", content="")
    changed.weight = math.nan  # not validated, so it is refused when written
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_line(changed)
    assert dump_line(Message(role="user", content="é")) == '{"role": "user", "content": "é"}'


def test_plain_rows_are_written_like_records(tmp_path: Path) -> None:
    write_rows(tmp_path / "r.jsonl", [{"b": "é", "a": 1}])
    assert (tmp_path / "r.jsonl").read_bytes() == '{"b": "é", "a": 1}\n'.encode()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_rows(tmp_path / "r.jsonl", [{"a": math.nan}])


def test_a_list_in_a_json_file_is_read_like_lines(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"a": 1}, {"a": 2}]')
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    items = list(read_records(tmp_path / "rows.json"))
    assert items == [(f"{tmp_path}/rows.json, item {i}", {"a": i + 1}) for i in range(2)]
    lines = list(read_records(tmp_path / "rows.jsonl"))
    assert lines == [(f"{tmp_path}/rows.jsonl, line {i}", {"a": a}) for i, a in ((1, 1), (3, 2))]


def test_an_absent_file_and_one_without_an_object_are_an_empty_object(tmp_path: Path) -> None:
    assert load_object(tmp_path / "none.json") == {}
    (tmp_path / "list.json").write_text("[1]")
    assert load_object(tmp_path / "list.json") == {}


def test_an_episodes_rewards_are_those_of_the_chosen_attempts() -> None:
    turn = Turn(
        model="m", attempts=[Attempt(text="a", reward=0), Attempt(text="b", reward=1)], chosen=1, observation=""
    )
    blank = Turn(model="m", attempts=[Attempt(text="a", reward=None)], chosen=0, observation="")
    episode = Episode(id="", env="", query="", gold="", prompt=[], turns=[turn, blank], status="solved", seed="")
    assert (episode.rewards, turn.attempt.text) == ([1], "b")


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_mean_and_error_match_the_textbook_formulas(values: list[float]) -> None:
    metric = mean_and_error(iter(values))
    assert metric["n"] == len(values)
    assert metric["mean"] == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert metric["se"] == pytest.approx(statistics.stdev(values) / len(values) ** 0.5, abs=1e-6)


def test_a_metric_whose_square_would_overflow_is_refused(tmp_path: Path) -> None:
    lines = [f'{{"id": "{value}", "values": {{"reward": {value}}}}}\n' for value in ("1e100", "-1e100", "1e101")]
    (tmp_path / "outcomes.jsonl").write_text("".join(lines[:2]))
    assert math.isfinite(average(read_jsonl(tmp_path / "outcomes.jsonl", Outcome))["reward"]["se"])
    (tmp_path / "outcomes.jsonl").write_text("".join(lines))
    with pytest.raises(UserError, match=r"line 3: field 'values\.reward': numbers must not exceed 1e\+100"):
        read_jsonl(tmp_path / "outcomes.jsonl", Outcome)


def test_mean_and_error_of_no_value_and_of_one() -> None:
    assert mean_and_error([]) == {"mean": 0.0, "se": 0.0, "n": 0}
    assert mean_and_error([2.0]) == {"mean": 2.0, "se": 0.0, "n": 1}


@pytest.mark.parametrize("line", ['{"role": "user", "content": "\\ud800"}', '{"\\uDFFF": 1}'])
def test_a_lone_surrogate_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"a": "\\ud83d\\ude00 \\\\ud800"}\n' + line + "\n")  # whole pair, escaped backslash: valid
    with pytest.raises(UserError, match=r"r\.jsonl, line 2: half of a character"):
        list(read_rows(path))


def test_a_chosen_attempt_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"model": "m", "attempts": [{"text": "a", "reward": 0}], "chosen": 1, "observation": ""}\n')
    with pytest.raises(UserError, match=r"line 1: chosen is 1, but there are 1 attempts"):
        read_jsonl(path, Turn)


def test_a_json_file_that_cannot_be_read_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"a": [1,')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    (tmp_path / "folder.json").mkdir()
    for name, words in {
        "none": "does not exist; run the stage",
        "folder": "can't be read .*; fix or replace it",
        "torn": "is not JSON .*; restore it",
        "deep": "is not JSON",
        "latin": "is not JSON",
    }.items():
        with pytest.raises(UserError, match=rf"{name}\.json {words}") as error:
            load_json(tmp_path / f"{name}.json")
        assert "\n" not in str(error.value)


def test_pipes_and_devices_are_refused_as_data_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="is a pipe or a device"):
            list(read_rows(path))
        with pytest.raises(UserError, match="is a pipe or a device"):
            load_json(path)


def test_a_negative_training_weight_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "e", "messages": [{"role": "assistant", "content": "x", "weight": -29.5}]}\n')
    with pytest.raises(UserError, match=r"line 1: field 'messages.0.weight': .*greater than or equal to 0"):
        read_jsonl(path, Example)


@pytest.mark.parametrize("text", ["", '{"a": [1,', "[1]", "null", "\xff"])
def test_a_damaged_output_file_is_reported_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "train.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UserError) as caught:
        read_object(file)
    assert str(caught.value).startswith(f"{file} ")
    assert str(caught.value).endswith("restore it, or generate it again.")


def test_a_missing_output_file_and_a_missing_or_wrong_number_in_one_are_reported_by_name(tmp_path: Path) -> None:
    file = tmp_path / "train.json"
    with pytest.raises(UserError, match=r"train\.json does not exist; run `make repro`, which writes it\."):
        read_object(file)
    file.write_text(
        '{"steps": 3, "score": {"mean": 0.5, "n": 8}, "text": "3", "far": 1e301, "low": -1e301, "rate": 0.25}',
        encoding="utf-8",
    )
    assert [read_number(file, key) for key in ("steps", "score", "rate")] == [3, 8, 0.25]
    for key in ("text", "far", "low", "tokens"):
        with pytest.raises(UserError, match=rf"train\.json: field '{key}' must be a number; restore the file"):
            read_number(file, key)


def test_a_turns_messages_are_the_chosen_attempt_as_it_was_generated_and_the_observation() -> None:
    attempts = [Attempt(text="a", reward=0.0), Attempt(text="b", reward=1.0, token_ids=[7], finish="stop")]
    said, told = Turn(model="m", attempts=attempts, chosen=1, observation="wrong").messages
    assert (said.role, said.content, said.token_ids, said.finish) == ("assistant", "b", [7], "stop")
    assert (told.role, told.content) == ("user", "wrong")


def test_a_path_that_is_too_long_is_abbreviated_in_the_error() -> None:
    path = Path("a" * 5000)
    for read in (lambda: list(read_rows(path)), lambda: load_json(path), lambda: only_regular(path)):
        with pytest.raises(UserError, match=r"a… can't be looked up \(File name too long\); fix the path") as refused:
            read()
        assert len(str(refused.value)) < 200
