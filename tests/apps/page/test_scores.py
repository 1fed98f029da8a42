"""The page's log-probabilities of training examples and episodes are those of the models before and after training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from selfimprove.apps.page.episodes import to_page
from selfimprove.apps.page.graph import StageShown, trained_on
from selfimprove.apps.page.library import Source, write_library
from selfimprove.apps.page.run import Run
from selfimprove.apps.page.scores import Scorer, Wanted
from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Attempt, Episode, Message, Turn, write_rows
from tests.support.reports import chunk
from tests.support.tiny import make_tiny_model


def finetune(method: str, row: str, file: str, before: str) -> StageShown:
    """A stage that trains ``row`` on a file, starting from the model ``before``."""
    return StageShown(
        f"{method}-finetune@{row}", "", method, "finetune", row, [], [],
        [f"data/{method}/{file}.jsonl", f"models/{method}/{before}"],
        [{"path": f"models/{method}/{row}", "there": True}], [], "done",
    )  # fmt: skip


def test_a_file_of_examples_belongs_to_the_row_that_was_trained_on_it(tmp_path: Path) -> None:
    """In Reflect-RL's SFT, reflections and actions train two models, each with its own log-probabilities."""
    files = {"policy": "sft_policy", "reflector": "sft_reflection", "more_sft": "sft_policy"}
    stages = [finetune("reflect_rl", row, f"base/train/{file}", "start") for row, file in files.items()]
    train = tmp_path / "data/reflect_rl/base/train"
    train.mkdir(parents=True)
    for file in ("sft_policy", "sft_reflection", "sft_policy_positive"):
        write_rows(train / f"{file}.jsonl", [TRAINED | {"id": file}])
    for row in ("start", *files):
        make_tiny_model(tmp_path / "models/reflect_rl" / row, seed=len(row))
        (tmp_path / "results/reflect_rl" / row).mkdir(parents=True)
    trained = trained_on(stages)
    run = Run(tmp_path)
    scorer = Scorer(run, stages, "auto")
    found = write_library(run, "reflect_rl", tmp_path / "data", scorer.extend, trained)
    assert [one["name"] for one in found.sets] == ["policy/training", "reflector/training"]
    for place, row in enumerate(("policy", "reflector")):
        [record] = chunk(tmp_path, f"{found.sets[place]['file']}-0")
        _, _, ids, after, before = record["m"][1]["p"][0]
        prompt = [Message(role="user", content="one")]
        for values, model in ((after, row), (before, "start")):
            wanted = log_probs(tmp_path / "models/reflect_rl" / model, prompt, ids)
            assert values == pytest.approx(wanted, abs=2e-3)
        assert after != before


def test_the_chat_format_is_that_of_the_start_until_a_row_is_trained(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "models/rise/start")
    assert Scorer(Run(tmp_path), [], "auto").chat("rise") is not None


@pytest.fixture
def scorers(tmp_path: Path) -> Callable[[Wanted], Scorer]:
    """Factory of scorers for a run whose row iter1 was trained from base; both have a model."""
    for row in ("base", "iter1"):
        make_tiny_model(tmp_path / "models/rise" / row)
        (tmp_path / "results/rise" / row).mkdir(parents=True)
    stage = finetune("rise", "iter1", "iter1/train/examples", "base")
    return lambda wanted: Scorer(Run(tmp_path), [stage], wanted)


def log_probs(model: Path, prompt: Sequence[Message], ids: Sequence[int]) -> list[float]:
    """Log-probabilities of ids after a prompt, which is encoded as for an engine."""
    import torch
    from transformers import AutoModelForCausalLM

    read = ChatFormat.load(model).encode(prompt, add_generation_prompt=True).ids
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model)(torch.tensor([[*read, *ids]])).logits[0].log_softmax(-1)
    return [float(logits[len(read) - 1 + place, token]) for place, token in enumerate(ids)]


TRAINED = {
    "id": "a",
    "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two", "weight": 1.0}],
}


def test_log_probabilities_equal_those_of_the_model(scorers: Callable[[Wanted], Scorer], tmp_path: Path) -> None:
    record = to_page(TRAINED)
    scorers("auto").extend("rise", Source("iter1", "training", tmp_path), 1, TRAINED, record)
    [text, weight, ids, after, before] = record["m"][1]["p"][0]
    model = tmp_path / "models/rise/iter1"
    chat = ChatFormat.load(model)
    assert (text, weight, ids) == (
        "two",
        1.0,
        [*chat.content_ids(Message(role="assistant", content="two")), chat.end_id],
    )
    assert after == pytest.approx(log_probs(model, [Message(role="user", content="one")], ids), abs=2e-3)
    assert before == pytest.approx(after)
    assert record["m"][0]["p"] == [["one", 0, None]]
    none = to_page(TRAINED)
    scorers("no").extend("rise", Source("iter1", "training", tmp_path), 1, TRAINED, none)
    assert len(none["m"][1]["p"][0]) == 3


def test_an_episode_s_log_probabilities_are_conditioned_on_the_prompt_of_each_turn(
    scorers: Callable[[Wanted], Scorer], tmp_path: Path
) -> None:
    said = [Attempt(text=f"try {turn}", reward=0.0, token_ids=[7, 8 + turn], finish="stop") for turn in range(3)]
    turns = [
        Turn(model="student", attempts=[one], chosen=0, observation=f"no, not {turn}", omitted=2 * (turn == 2))
        for turn, one in enumerate(said)
    ]
    prompt = [Message(role="user", content="one")]
    episode = Episode(
        id="a", env="gsm8k", query="one", gold="1", prompt=prompt, turns=turns, status="unsolved", seed="1/a"
    )
    line = episode.model_dump(mode="json")
    record = to_page(line)
    scorers("auto").extend("rise", Source("iter1", "evaluation", tmp_path), 1, line, record)
    later = [
        message for one, turn in zip(said, turns, strict=True)
        for message in (Message(role="assistant", content=one.text, token_ids=one.token_ids, finish="stop"),
                        Message(role="user", content=turn.observation))
    ]  # fmt: skip
    for place, read in enumerate(([], later[:2], later[2:4])):  # the last turn's prompt omitted the first turn
        part = record["m"][1 + 2 * place]["p"][0]
        assert part[2][:2] == said[place].token_ids
        wanted = log_probs(tmp_path / "models/rise/iter1", [*prompt, *read], part[2])
        assert part[3] == pytest.approx(wanted, abs=2e-3)
    assert [len(one["p"][0]) for one in record["m"]] == [3, 5, 3, 5, 3, 5, 3]


def test_a_model_with_damaged_weights_has_no_log_probabilities_and_other_rows_have_theirs(tmp_path: Path) -> None:
    rows = ("iter1", "iter2")
    for row in ("base", *rows):
        make_tiny_model(tmp_path / "models/rise" / row)
        (tmp_path / "results/rise" / row).mkdir(parents=True)
    file = tmp_path / "models/rise/iter1/model.safetensors"
    save_file({name: value * float("nan") for name, value in load_file(file).items()}, file, {"format": "pt"})
    run = Run(tmp_path)
    scorer = Scorer(run, [finetune("rise", row, f"{row}/train/examples", "base") for row in rows], "auto")
    records = {row: to_page(TRAINED) for row in rows}
    for row, record in records.items():
        scorer.extend("rise", Source(row, "training", tmp_path), 1, TRAINED, record)
    assert [len(records[row]["m"][1]["p"][0]) for row in rows] == [3, 5]
    assert len(run.problems) == 1
    assert run.problems[0].startswith("models/rise/iter1: its log-probabilities cannot be computed (some are not fini")
    scorer.extend("rise", Source("iter2", "training", tmp_path), 1, {"id": "b", "messages": []}, to_page(TRAINED))
    assert len(run.problems) == 1  # an example without messages has no tokens


@pytest.mark.parametrize(("wanted", "scored"), [("no", 0), ("auto", 24), ("yes", 24), ("all", 50)])
def test_the_option_sets_how_many_records_of_a_file_have_log_probabilities(
    wanted: Wanted, scored: int, scorers: Callable[[Wanted], Scorer], tmp_path: Path
) -> None:
    scorer, records = scorers(wanted), [to_page(TRAINED) for _ in range(50)]
    for record in records:
        scorer.extend("rise", Source("iter1", "training", tmp_path), len(records), TRAINED, record)
    assert sum(len(record["m"][1]["p"][0]) > 3 for record in records) == scored
