"""Validation in training: the examples that are held out, and when they are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.training.encode import encode_examples
from selfimprove.training.launch import hold_out
from selfimprove.training.objective import example_scales
from selfimprove.training.rows import render
from tests.support.sentences import refused_with
from tests.training.small_runs import Maker, load, loss_and_gradients, run, tuned


def test_held_out_examples_are_measured_after_each_epoch_and_never_trained_on(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    examples = dialogues(20)
    cfg = tuned(epochs=3, batch_size=4, validation=0.2, lr=1e-3, logging_steps=5)
    points: dict[int, dict[str, float]] = {}
    report = run(tiny, examples, tmp_path / "measured", cfg, progress=lambda *told: points.update({told[0]: told[3]}))
    assert (report.held_out, report.examples, report.steps) == (4, 3 * 16, 12)
    assert [row["step"] for row in report.evaluations] == [4, 8, 12]
    # The curves contain every measurement, also between the steps whose metrics are logged.
    assert [(step, told["loss"]) for step, told in points.items() if "loss" in told] == report.loss
    assert [step for step, _ in report.loss] == [5, 10, 12]
    curve = [{"step": step, "eval_loss": told["eval_loss"]} for step, told in points.items() if "eval_loss" in told]
    assert curve == report.evaluations
    chat = ChatFormat.load(tiny)
    encoded, _ = encode_examples(examples, chat, cfg.max_length)
    keys = [json.dumps([one.ids, one.token_weights]) for one in encoded]
    kept, held = hold_out(range(20), keys.__getitem__, 0.2, seed=3)
    apart = [examples[index] for index in kept]
    # The measured loss is the objective on those examples; the model is that of the other examples alone.
    batch = [encoded[index] for index in held]
    scales = dict(enumerate(example_scales(batch, "example_mean", "none")))
    inputs = render(tuple((index,) for index in range(len(batch))), batch, scales, chat.pad_id)
    loss, _ = loss_and_gradients(load(tmp_path / "measured" / "model"), [inputs])
    assert report.evaluations[-1]["eval_loss"] == pytest.approx(loss, rel=1e-4)
    run(tiny, apart, tmp_path / "apart", cfg.model_copy(update={"validation": 0.0}))
    one, two = (load(tmp_path / name / "model").state_dict() for name in ("measured", "apart"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_held_out_examples_are_measured_after_the_step_in_which_an_epoch_ends(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    report = run(tiny, dialogues(20), tmp_path, tuned(epochs=3, batch_size=6, validation=0.2))
    assert (report.held_out, report.steps) == (4, 8)
    assert [row["step"] for row in report.evaluations] == [3, 6, 8]  # after 18, 36 and 48 of three times 16 examples


def test_which_examples_are_held_out_depends_only_on_seed_and_content() -> None:
    keys = [f"example {number}" for number in range(40)]
    kept, held = hold_out(keys, str, 0.25, seed=1)
    assert (len(kept), len(held)) == (30, 10)
    assert sorted([*kept, *held]) == sorted(keys)
    assert hold_out(keys[::-1], str, 0.25, seed=1) == (kept[::-1], held[::-1])
    assert set(hold_out(keys, str, 0.25, seed=2)[1]) != set(held)
    assert hold_out(keys, str, 0.0, seed=1) == (keys, [])


def test_holding_out_all_examples_is_refused(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    with refused_with(r"train\.validation: 0\.9 holds out all 2 examples; lower it"):
        run(tiny, dialogues(2), tmp_path, tuned(validation=0.9))


def test_a_share_of_an_epoch_without_an_example_is_refused(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    with refused_with(r"^train\.epochs: 0\.02 of 20 examples is none; raise it, or set 0"):
        run(tiny, dialogues(20), tmp_path, tuned(epochs=0.02))
