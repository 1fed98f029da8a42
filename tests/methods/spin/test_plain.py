"""Plain SPIN: rows of chats, fractions, gathering, and one format for generation and training (docs/spin.md, S45)."""

import asyncio
import inspect
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import read_schema

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.engines import factory
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.interop.spin_plain import answer_all, app, gather_command, generate_command, reformat_command
from selfimprove.methods.spin.chats import (
    first_exchange,
    fraction,
    fractions,
    gathered,
    make_row,
    read_chats,
    read_rows_of,
    reformat,
    write_rows_to,
)
from selfimprove.methods.spin.pairs import spin_pairs, text_of
from selfimprove.methods.spin.params import ConvertParams, TasksParams
from selfimprove.methods.spin.prompts import opening
from selfimprove.methods.spin.tasks import examples, gather
from tests.methods.spin.episodes import QUESTION, played
from tests.support.commands import ends_with
from tests.support.tiny import make_tiny_model, train_tokenizer


def chat(number: int, **more: Any) -> Any:
    return {
        "messages": [
            {"role": "user", "content": f"Ask {number}?"},
            {"role": "assistant", "content": f"Answer {number}."},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "More."},
        ]
    } | more


def run(*words: object) -> None:
    assert ends_with(app, *words) == 0, words


def fails(capsys: Any, *words: object) -> str:
    assert ends_with(app, *words) == 2
    return capsys.readouterr().err


@pytest.fixture
def ultrachat(tmp_path: Path) -> Any:
    folder = tmp_path / "ultrachat"
    folder.mkdir()
    write_rows_to(folder / "train_sft-00000.jsonl", [chat(n) for n in range(10)])
    write_rows_to(folder / "test_sft-00000.jsonl", [chat(n) for n in range(100, 103)])
    write_rows_to(folder / "train_gen-00000.jsonl", [chat(n) for n in range(200, 203)])
    return folder


def test_reformat_takes_the_first_exchange_and_leaves_the_generated_answer_empty(ultrachat: Any) -> None:
    rows, counts = reformat(ultrachat, "ultrachat")
    assert rows["train"][3] == make_row("Ask 3?", "Answer 3.", "")
    assert (counts.train, counts.test, counts.malformed, counts.ranking_files) == (10, 3, 0, 1)


def test_files_are_parquet_like_the_originals_and_a_split_in_two_formats_is_refused(
    ultrachat: Any, tmp_path: Path
) -> None:
    words = ("reformat", "--data", ultrachat, "--output-dir", tmp_path)
    run(*words)
    assert {path.name for path in tmp_path.glob("*_prefs*")} == {
        "train_prefs-00000-of-00001.parquet", "test_prefs-00000-of-00001.parquet",
    }  # fmt: skip
    run(*words[:-1], tmp_path / "below")  # a subfolder is separate from its parent
    assert len(read_chats(tmp_path, "train")) == 10
    run(*words, "--file-format", "jsonl")
    with pytest.raises(UserError, match=r"train_prefs-00000-of-00001\.jsonl and .*parquet; delete the outdated one"):
        read_chats(tmp_path, "train")


def test_a_file_whose_name_merely_contains_gen_is_read(ultrachat: Any) -> None:
    write_rows_to(ultrachat / "train_agenda-00000.jsonl", [chat(n) for n in range(300, 304)])
    _, counts = reformat(ultrachat, "ultrachat")
    assert (counts.train, counts.ranking_files) == (14, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"messages": "hello"},
        {"messages": [{"role": "user", "content": "alone"}]},
        {"messages": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]},
    ],
)
def test_rows_without_a_prompt_and_answer_are_counted_and_left_out(bad: Any, ultrachat: Any) -> None:
    assert first_exchange(bad) is None
    write_rows_to(ultrachat / "train_sft-00001.jsonl", [bad, chat(50)])
    assert (reformat(ultrachat, "ultrachat")[1].train, reformat(ultrachat, "ultrachat")[1].malformed) == (11, 1)


def test_a_system_message_is_left_out() -> None:
    told = {"messages": [{"role": "system", "content": "Be brief."}, *chat(1)["messages"]]}
    assert first_exchange(told) == make_row("Ask 1?", "Answer 1.", "")


def test_a_tenth_of_tulu_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "tulu").mkdir()
    write_rows_to(tmp_path / "tulu" / "data.jsonl", [chat(n) for n in range(50)])
    rows, counts = reformat(tmp_path / "tulu", "tulu-v2")
    assert (counts.train, counts.test) == (45, 5)
    write_rows_to(tmp_path / "tulu" / "more.jsonl", [chat(50)])
    assert reformat(tmp_path / "tulu", "tulu-v2")[1].test == 6  # rounded up
    assert not {str(row) for row in rows["train"]} & {str(row) for row in rows["test"]}


@given(st.integers(1, 300), st.integers(0, 60))
def test_fractions_contain_every_row_exactly_once(count: int, length: int) -> None:
    rows = [make_row(str(number), "a", "") for number in range(count)]
    number = fractions(count, length)
    assert number == (-(-count // length) if length else 1)
    parts = [fraction(rows, index, length) for index in range(number)]
    assert sorted(place for part in parts for place, _ in part) == list(range(count))
    assert all(len(part) == length for part in parts[:-1])
    assert all(part for part in parts)
    with pytest.raises(UserError, match=f"there is no fraction {number}: "):
        fraction(rows, number, length)


def test_a_split_without_rows_has_no_fractions() -> None:
    for length in (0, 5):
        with pytest.raises(UserError, match="the split has no rows"):
            fraction([], 0, length)


def test_rows_are_shuffled_before_they_are_divided_into_fractions() -> None:
    rows = [make_row(str(number), "a", "") for number in range(100)]
    assert [place for place, _ in fraction(rows, 0, 10)] != list(range(10))
    # The order of datasets.Dataset.from_list(…).shuffle(seed=42) for ten rows: fractions equal the original's.
    assert [place for place, _ in fraction(rows[:10], 0, 0)] == [5, 6, 0, 7, 3, 2, 4, 9, 1, 8]


def test_every_answer_has_its_own_seed_and_end_of_turn_text_is_removed() -> None:
    asked = []

    def answer(request: Any, sample: Any) -> str:
        asked.append(request)
        return f"  </s>said {request.seed}</s>"

    rows = [(place, make_row(f"Ask {place}?", "real", "")) for place in (7, 3)]
    made = asyncio.run(answer_all(rows, ScriptedEngine(answer), seed=42, temperature=1.0, top_p=1.0, max_tokens=256))
    assert [row["generated"][1]["content"] for row in made] == ["said 42/chat-7/0/0", "said 42/chat-3/0/0"]
    assert [row["real"][1]["content"] for row in made] == ["real", "real"]
    assert [(m.role, m.content) for m in asked[0].messages] == [("system", ""), ("user", "Ask 7?")]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"real": "x"},
        {"real": [{"content": "a"}]},
        {"real": [{"content": "a"}, {"content": None}]},
        {"real": [{"content": "a"}, "b"]},
    ],
)
def test_malformed_rows_are_reported_before_any_row_is_answered(bad: Any) -> None:
    asked = []

    def answer(request: Any, sample: Any) -> str:
        asked.append(request)
        return "said"

    rows = [(3, make_row("Ask?", "real", "")), (7, bad)]
    with pytest.raises(UserError, match=r"^row 7: no prompt and answer under 'real'; write the file with `reformat`"):
        asyncio.run(answer_all(rows, ScriptedEngine(answer), seed=42, temperature=1.0, top_p=1.0, max_tokens=256))
    assert asked == []


def test_regenerating_a_fraction_gives_the_same_file(ultrachat: Any, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    run("reformat", "--data", ultrachat, "--output-dir", tmp_path / "rows")
    words = ["generate", "--model", model, "--input-dir", tmp_path / "rows", "--output-dir", tmp_path / "out",
             "--frac-len", 4, "--max-tokens", 8, "--context", 128, "--threads", 1]  # fmt: skip
    run(*words, "--data-frac", 2)
    first = (tmp_path / "out" / "loser_2.jsonl").read_bytes()
    run(*words, "--data-frac", 2)
    assert (tmp_path / "out" / "loser_2.jsonl").read_bytes() == first
    assert len(first.splitlines()) == 2
    run(*words, "--split", "test")
    assert len((tmp_path / "out" / "loser_0_test.jsonl").read_text().splitlines()) == 3


def test_the_opponent_may_be_an_adapter(ultrachat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny_model(tmp_path / "model")
    adapter = copytree(model, tmp_path / "adapter", ignore=ignore_patterns("*.safetensors"))
    monkeypatch.setattr(factory, "full_weights", lambda folder, **_: model if folder == adapter else folder)
    run("reformat", "--data", ultrachat, "--output-dir", tmp_path / "rows")
    run("generate", "--model", adapter, "--input-dir", tmp_path / "rows", "--output-dir", tmp_path / "out",
        "--frac-len", 2, "--max-tokens", 4, "--context", 128, "--threads", 1)  # fmt: skip
    assert len((tmp_path / "out" / "loser_0.jsonl").read_text().splitlines()) == 2


def test_requesting_a_fraction_beyond_the_last_is_reported_in_one_sentence(
    ultrachat: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("reformat", "--data", ultrachat, "--output-dir", tmp_path / "rows")
    capsys.readouterr()
    said = fails(capsys, "generate", "--model", tmp_path, "--input-dir", tmp_path / "rows", "--output-dir", tmp_path,
                 "--frac-len", 1, "--data-frac", 10)  # fmt: skip
    for option, value in (("--batch-size", 8193), ("--context", 10**8), ("--top-p", 0), ("--temperature", "inf")):
        assert option in fails(capsys, "generate", "--model", tmp_path, "--input-dir", tmp_path / "rows",
                               "--output-dir", tmp_path, option, value)  # fmt: skip
    assert said.splitlines()[-1] == (
        "there is no fraction 10: 10 rows in fractions of 1 give the fractions 0 to 9; choose one of those."
    )


def test_gathering_requires_all_fractions_and_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in (0, 2, 3):
        write_rows_to(tmp_path / f"loser_{index}.jsonl", [make_row(f"{index}", "real", "said")])
    with pytest.raises(UserError, match=r"1 of 4 fractions are missing \(1\)"):
        gathered(tmp_path, 4, "train")
    write_rows_to(tmp_path / "loser_1.jsonl", [make_row("1", "real", "said")])
    for count, other in ((3, 3), (2, 2), (1, 1)):
        with pytest.raises(UserError, match=rf"contains loser_{other}.jsonl too"):
            gathered(tmp_path, count, "train")
    (tmp_path / "loser_1.jsonl").rename(tmp_path / "aside.jsonl")
    with pytest.raises(UserError, match=r"contains loser_2.jsonl too"):
        gathered(tmp_path, 1, "train")
    (tmp_path / "aside.jsonl").rename(tmp_path / "loser_1.jsonl")
    everything = ("gather", "--num-fracs", 4, "--input-dir", tmp_path, "--output-dir", tmp_path / "all")
    run(*everything)
    assert [file.name for file in (tmp_path / "all").iterdir()] == ["train_prefs-00000-of-00001.parquet"]
    write_rows_to(tmp_path / "loser_1_test.jsonl", [make_row("t1", "real", "said")])
    assert "1 of 2 fractions are missing (0)" in fails(capsys, *everything)
    write_rows_to(tmp_path / "loser_0_test.jsonl", [make_row("t0", "real", "said")])
    run(*everything)
    for split, asked in (("train", ["0", "1", "2", "3"]), ("test", ["t0", "t1"])):
        rows = read_rows_of(tmp_path / "all" / f"{split}_prefs-00000-of-00001.parquet")
        assert [row["real"][0]["content"] for _, row in rows] == asked
    write_rows_to(tmp_path / "loser_1.jsonl", [])
    with pytest.raises(UserError, match=r"loser_1\.jsonl is empty; add at least one row"):
        gathered(tmp_path, 4, "train")
    write_rows_to(tmp_path / "loser_1.jsonl", [{"real": []}])
    with pytest.raises(UserError, match="no answer under 'generated'"):
        gathered(tmp_path, 4, "train")


def test_gathered_answers_begin_without_white_space_as_in_the_original(tmp_path: Path) -> None:
    write_rows_to(tmp_path / "loser_0.jsonl", [make_row("q ", " real ", "\n said ")])
    assert gathered(tmp_path, 1, "train") == [make_row("q ", " real ", "said ")]


def test_the_commands_have_the_originals_defaults() -> None:
    def default(command: Any, *names: str) -> list[Any]:
        return [inspect.signature(command).parameters[name].default for name in names]

    assert default(reformat_command, "output_dir", "kind", "file_format") == [
        Path("reformatted"),
        "ultrachat",
        "parquet",
    ]
    assert default(generate_command, "batch_size", "data_frac", "frac_len", "split") == [16, 0, 0, "train"]
    assert default(generate_command, "max_tokens", "temperature", "top_p") == [256, 1.0, 1.0]
    assert default(gather_command, "num_fracs", "split") == [125, None]


def test_the_pipeline_reads_the_rows_as_splits_and_experts(ultrachat: Any, tmp_path: Path) -> None:
    run("reformat", "--data", ultrachat, "--output-dir", tmp_path / "rows")
    tasks = TasksParams(source="chat", file=str(tmp_path / "rows"), train=8, dev=1, test=2)
    made = gather(tasks, ToolsParams(), seed=1, download=tmp_path, mirror=None)
    assert [question.question for question in made.splits["train"]][:2] == ["Ask 0?", "Ask 1?"]
    episode = played([" An answer of mine."], question=made.splits["train"][0], form="reply")
    (pair,), audit = spin_pairs(made.experts, [episode], ConvertParams(), "iter0")
    assert (text_of(pair.real), text_of(pair.generated)) == ("Answer 0.", "An answer of mine.")
    assert (audit.kept, audit.unfinished) == (1, 0)
    (example, *_) = examples(made.experts, "reply")
    assert [(m.role, m.content) for m in example.messages[:2]] == [("system", ""), ("user", "Ask 0?")]


def chats_in(folder: Path, split: str, *rows: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    write_rows_to(folder / f"{split}_prefs-00000-of-00001.jsonl", [make_row(asked, real, "") for asked, real in rows])


def test_prompts_repeated_within_a_split_are_separate_questions(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    chats_in(folder, "train", ("Hello", "a"), ("Hello", "b"), ("hello", "c"), ("Hello", "d"))
    chats_in(folder, "test", ("Bye", "e"), ("bye", "f"))
    tasks = TasksParams(source="chat", file=str(folder), train=4, dev=0, test=2)
    made = gather(tasks, ToolsParams(), seed=1, download=tmp_path, mirror=None)
    first, second, other, third = (expert.id for expert in made.experts)
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert not other.startswith(first)
    assert [expert.question.gold for expert in made.experts] == ["a", "b", "c", "d"]
    assert [question.id for question in made.splits["train"]] == [first, second, other, third]
    episodes = [played(["mine"], question=question, form="reply") for question in made.splits["train"]]
    pairs, _ = spin_pairs(made.experts, episodes, ConvertParams(), "iter0")
    assert [text_of(pair.real) for pair in pairs] == ["a", "b", "c", "d"]


def test_a_prompt_in_two_splits_is_refused_even_if_it_also_repeats_within_one(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    chats_in(folder, "train", ("Hello", "a"), ("hello", "b"))
    chats_in(folder, "test", ("HELLO", "c"))
    tasks = TasksParams(source="chat", file=str(folder), train=2, dev=0, test=1)
    with pytest.raises(UserError, match="the question 'hello' is in train and test; keep it in"):
        gather(tasks, ToolsParams(), seed=1, download=tmp_path, mirror=None)


def test_prompts_are_zephyr_turns_with_an_empty_system_turn(tmp_path: Path) -> None:
    train_tokenizer(tmp_path)
    zephyr = ChatFormat.load(tmp_path, "zephyr")
    ids = zephyr.encode(opening("Ask?", "reply"), add_generation_prompt=True).ids
    text = zephyr._tokens.decode(ids, skip_special_tokens=False)
    assert text == "<|system|>\n<|end|>\n<|user|>\nAsk?<|end|>\n<|assistant|>\n"


def test_parquet_files_read_back_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    write_rows_to(file, [make_row("a", "b", "c")])
    assert [row for _, row in read_rows_of(file)] == [make_row("a", "b", "c")]
    columns = read_schema(file)
    write_rows_to(tmp_path / "none.parquet", [])  # a data set without a test split
    assert read_schema(tmp_path / "none.parquet") == columns
    whole = file.read_bytes()
    for damaged in (whole[:-10], whole[:4] + bytes(len(whole) // 3) + whole[4 + len(whole) // 3 :]):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"x\.parquet is not a readable parquet file"):
            list(read_rows_of(file))


def test_a_missing_folder_or_one_without_reformatted_chats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        read_chats(tmp_path / "none", "train")
    with pytest.raises(UserError, match=r"write it with `reformat`"):
        read_chats(tmp_path, "train")


def test_in_reply_format_one_reply_is_the_whole_episode() -> None:
    episode = played([" Fine.\nAction: search[x]"], question=QUESTION, form="reply")
    assert (len(episode.rounds), episode.finished, episode.messages[0].content) == (
        1,
        True,
        " Fine.\nAction: search[x]",
    )
