"""The allowed shapes of a pass: a row gets the same bits in each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfimprove.engines.cpu import decoder as cpu
from selfimprove.engines.cpu.decoder import Decoder, Shapes
from selfimprove.engines.cpu.llama import Llama
from selfimprove.engines.cpu.slots import Rows
from selfimprove.models.loading import load_causal_lm
from tests.engines.asking import ask, make_engine, run

SLOTS, CONTEXT, READING, BLOCK = 16, 256, 8, 16


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """One thread, as in these tests' engines; restores the previous number for other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_decoder(folder: Path) -> Decoder:
    """A decoder with random keys and values in all rows."""
    decoder = Decoder(
        load_causal_lm(folder), slots=SLOTS, context=CONTEXT, prefill_rows=READING, prefill_block=BLOCK, pad_id=0
    )
    with torch.inference_mode():
        for rows in (decoder.slots, decoder.reading):
            rows.kv.normal_(generator=torch.Generator().manual_seed(1))
    return decoder


def test_a_step_with_fewer_rows_and_narrower_attention_gives_the_bits_of_the_full_one(folder: Path) -> None:
    decoder, draw = make_decoder(folder), np.random.default_rng(2)
    shapes, full = decoder.shapes, Shapes([SLOTS], [CONTEXT])
    assert len(shapes.counts) > 1
    assert len(shapes.widths) > 1
    for count in shapes.counts:
        for width in shapes.widths:
            ids = draw.integers(0, 100, SLOTS)
            positions = draw.integers(0, width, SLOTS)
            positions[0] = width - 1  # so that this width is needed
            busy = np.arange(SLOTS) < count
            decoder.shapes = shapes
            some = decoder.step(ids, positions, busy)[:count].clone()
            decoder.shapes = full
            assert torch.equal(some, decoder.step(ids, positions, busy)[:count]), (count, width)


def test_prefilling_fewer_rows_gives_the_bits_of_prefilling_all(folder: Path) -> None:
    decoder, draw = make_decoder(folder), np.random.default_rng(3)
    shapes = decoder.reading_shapes
    full = Shapes(shapes.counts[-1:], shapes.widths[-1:])
    for count in shapes.counts:
        for start in range(0, CONTEXT, BLOCK):
            work = [(row, start, draw.integers(0, 100, BLOCK).tolist()) for row in range(count)]
            ends = dict.fromkeys(range(count), BLOCK - 1)
            outcomes = []
            for allowed in (shapes, full):
                decoder.reading_shapes = allowed
                logits = decoder.read(work, ends)
                assert logits is not None
                kept = [decoder.reading.take(row, start, start + BLOCK) for row in range(count)]
                outcomes.append((logits[:count].clone(), torch.stack(kept)))
            assert all(map(torch.equal, *outcomes)), (count, start)


def test_a_shape_that_changes_a_bit_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose kernels compute some shapes in another order than the full one."""
    before = make_decoder(folder)
    shapes = (before.shapes, before.reading_shapes)
    # The smallest count and the second width of each kind of pass, unless this machine allows the full one only.
    steps, readings = {before.shapes.counts[0]} - {SLOTS}, {before.reading_shapes.counts[0]} - {READING}
    widths = {one.widths[1] for one in shapes if len(one.widths) > 2}
    assert steps | readings | widths

    class Inexact(Llama):
        def read(self, rows: Rows, *rest: Any) -> torch.Tensor | None:
            return other_bit(rows, super().read(rows, *rest), readings)

        def step(self, rows: Rows, *rest: Any) -> torch.Tensor:
            logits = other_bit(rows, super().step(rows, *rest), steps)
            assert logits is not None
            return logits

    def other_bit(rows: Rows, logits: torch.Tensor | None, counts: set[int]) -> torch.Tensor | None:
        if logits is not None and (rows.count in counts or rows.width in widths):
            logits[-1, -1] = torch.nextafter(logits[-1, -1], torch.tensor(torch.inf))
        return logits

    monkeypatch.setattr(cpu, "Llama", Inexact)
    after = make_decoder(folder)
    for counts, was, now in zip((steps, readings), shapes, (after.shapes, after.reading_shapes), strict=True):
        assert now.counts == [count for count in was.counts if count not in counts]
        assert now.widths == [width for width in was.widths if width not in widths]


def test_with_several_threads_every_pass_computes_all_rows(folder: Path) -> None:
    torch.set_num_threads(2)
    decoder = make_decoder(folder)
    assert (decoder.shapes.counts, decoder.reading_shapes.counts) == ([SLOTS], [READING])


def test_an_engine_with_smaller_shapes_gives_the_completions_of_the_full_shapes(folder: Path) -> None:
    small, full = make_engine(folder, context=256, slots=16), make_engine(folder, context=256, slots=16)
    shapes, reading = small._decoder.shapes, small._decoder.reading_shapes
    assert (shapes.counts[-1], shapes.widths[-1]) == (16, 256)
    assert len(shapes.counts) > 1
    assert len(shapes.widths) > 1
    full._decoder.shapes = Shapes([16], [256])
    full._decoder.reading_shapes = Shapes(reading.counts[-1:], reading.widths[-1:])
    # Their lengths differ widely, so that the last ones are moved to other slots, with their settings, more than once.
    settings: list[dict[str, Any]] = [
        {}, {"temperature": 0.5}, {"top_p": 0.7}, {"top_k": 3}, {"allowed": ["7 " * 60, "8 " * 60]},
    ]  # fmt: skip
    requests = [ask(i, turns=i % 3, **settings[i % 5], max_tokens=4 + 5 * i) for i in range(24)]
    last = ask(24, max_tokens=124)
    [[whole]] = run(full, [last])
    requests.append(replace(last, stop=(whole.text[-4:],)))
    assert run(small, requests) == run(full, requests)


def test_fewer_rows_are_computed_for_the_last_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(folder, context=256, slots=16)
    engine._decoder.shapes = Shapes([4, 8, 16], engine._decoder.shapes.widths)
    forward, step, computed = engine._decoder._forward, engine._decoder._forward.step, []

    def noted(rows: Rows, ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        computed.append(len(ids))
        return step(rows, ids, *rest)

    monkeypatch.setattr(forward, "step", noted)
    run(engine, [ask(i, max_tokens=4 if i < 14 else 40, temperature=1.5) for i in range(16)])
    assert computed == sorted(computed, reverse=True)
    assert set(computed) == {16, 4}
