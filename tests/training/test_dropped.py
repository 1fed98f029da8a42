"""If many examples or pairs do not fit into max_length, a one-sentence warning reports it before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfimprove.core.records import Example, Pair
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune


def test_dropped_examples_give_a_warning_and_without_any_nothing_is_printed(
    tiny: Path, dialogues: Callable[..., list[Example]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = [one.model_copy(update={"messages": one.messages[:1] + one.messages[-1:]}) for one in dialogues(40)]
    for max_length, name in ((300, "all"), (50, "few")):
        cfg = FinetuneParams(epochs=0, max_length=max_length)
        report = finetune(tiny, examples, tmp_path / name, cfg, scratch=tmp_path / "scratch", seed=1, threads=1)
        dropped, said = report.counters.dropped_long, capsys.readouterr().err
        if name == "all":
            assert (dropped, said) == (0, "")
        else:
            assert 2 < dropped < 40
            assert said == (
                f"WARNING: {dropped / 40:.0%} of your examples were dropped ({dropped} of 40): longer than max_length "
                "50 (raise train.max_length).\n"
            )


def test_up_to_a_twentieth_of_the_examples_is_dropped_without_a_warning(
    tiny: Path, dialogues: Callable[..., list[Example]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opening, *_, last = dialogues(1)[0].messages
    short, long = (
        Example(id="one", messages=[opening, last.model_copy(update={"content": "so " * words})]) for words in (1, 300)
    )
    cfg = FinetuneParams(epochs=0, max_length=300)
    for name, dropped in (("fewer", 2), ("more", 3)):
        examples = [long] * dropped + [short] * (40 - dropped)
        report = finetune(tiny, examples, tmp_path / name, cfg, scratch=tmp_path / "scratch", seed=1, threads=1)
        assert report.counters.dropped_long == dropped
        assert ("WARNING" in capsys.readouterr().err) == (dropped > 2)


def test_dropped_pairs_give_the_same_warning_as_examples(
    tiny: Path, duels: Callable[..., list[Pair]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = PairParams(epochs=0, max_length=60, max_prompt_length=30)
    report = finetune_pairs(tiny, tiny, duels(20), tmp_path / "m", cfg, scratch=tmp_path / "s", seed=1, threads=1)
    assert report.counters.dropped_long > 1
    assert f"of your pairs were dropped ({report.counters.dropped_long} of 20)" in capsys.readouterr().err
