"""How a completion of the default engine ends: end token, token limit, stop strings, allowed outputs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfimprove.core.named_templates import PLAIN_SPECIAL_TOKENS
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.cpu.engine import TransformersEngine
from tests.engines.asking import ask, full_forward, make_engine, prompt_ids, run
from tests.support.tiny import make_tiny_model


def test_the_end_token_ends_a_completion_and_is_scored_but_not_returned(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "ends", spread=0.02)  # nearly uniform: the end token is drawn occasionally
    engine = make_engine(folder, slots=64)
    completions = run(engine, [ask(1, n=64, max_tokens=130)])[0]
    stopped = [c for c in completions if c.finish == "stop"]
    assert 6 < len(stopped) < 58
    for c in stopped:
        assert engine.chat.end_id not in (c.token_ids or [])
        assert len(c.logprobs or []) == len(c.token_ids or []) + 1
        assert not any(token in c.text for token in PLAIN_SPECIAL_TOKENS)
    for c in completions:
        if c.finish == "length":
            assert len(c.logprobs or []) == len(c.token_ids or []) == 130


def test_completions_have_at_most_max_tokens_tokens(engine: TransformersEngine) -> None:
    for limit in (1, 2, 33):
        assert all(len(c.token_ids or []) <= limit for c in run(engine, [ask(2, n=5, max_tokens=limit)])[0])


def test_stop_strings_cut_text_ids_and_logprobs(engine: TransformersEngine) -> None:
    plain = run(engine, [ask(6, n=10, max_tokens=60)])[0]
    stop = ("e", "2")
    cut = run(engine, [ask(6, n=10, max_tokens=60, stop=stop)])[0]
    assert any(s in c.text for s in stop for c in plain)
    for whole, part in zip(plain, cut, strict=True):
        places = [whole.text.find(s) for s in stop if s in whole.text]
        if not places:
            assert part == whole
            continue
        assert part.text == whole.text[: min(places)]
        assert part.finish == "stop"
        ids = part.token_ids or []
        assert ids == (whole.token_ids or [])[: len(ids)]
        assert part.text.startswith(engine.chat.decode(ids))
        assert len(part.text) - len(engine.chat.decode(ids)) < 8  # less than a token is lost
        assert part.logprobs == (whole.logprobs or [])[: len(ids)]


def test_with_keep_stop_the_text_ends_with_the_stop_string(engine: TransformersEngine) -> None:
    """SPIN's flat trajectories need the policy's text up to and including the stop string, and its tokens."""
    plain = run(engine, [ask(6, n=10, max_tokens=60)])[0]
    kept = run(engine, [ask(6, n=10, max_tokens=60, stop=("e",), keep_stop=True)])[0]
    assert any("e" in whole.text for whole in plain)
    for whole, part in zip(plain, kept, strict=True):
        if "e" not in whole.text:
            assert part == whole
            continue
        assert part.text == whole.text[: whole.text.find("e") + 1]
        assert part.finish == "stop"
        ids = part.token_ids or []
        assert ids == (whole.token_ids or [])[: len(ids)]
        assert len(part.logprobs or []) == len(ids)
        assert part.text.startswith(engine.chat.decode(ids))


def test_a_kept_stop_string_that_ends_inside_a_token_leaves_the_text_without_token_ids(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of another text would otherwise be trained as if they were the text's."""
    engine = make_engine(folder)
    ids = engine.chat.content_ids(Message(role="user", content="Tom read"))
    text = engine.chat.decode(ids)
    assert len(text) - len(engine.chat.decode(ids[:-1])) > 1  # the last token has several characters

    def drawn(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(logits),), next(reply)), torch.zeros(len(logits))

    monkeypatch.setattr("selfimprove.engines.cpu.samples.choose", drawn)
    for stop, known in ((text[:-1], None), (text, ids)):
        reply = iter([*ids, engine.chat.end_id])
        [[completion]] = run(engine, [ask(8, max_tokens=60, stop=(stop,), keep_stop=True)])
        assert (completion.text, completion.token_ids) == (stop, known)


def test_a_stop_string_is_found_across_token_boundaries(engine: TransformersEngine) -> None:
    whole = run(engine, [ask(8, max_tokens=40, n=6)])[0]
    for index, completion in enumerate(whole):
        text = completion.text
        for start in range(5, len(text) - 3, 7):
            stop = text[start : start + 3]
            if "\ufffd" in stop:
                continue
            request = ask(8, max_tokens=40, stop=(stop,), seed=SeedKey(1, "t8").at(index))
            assert run(engine, [request])[0][0].text == text[: text.find(stop)]


def test_a_stop_string_is_found_among_any_number_of_special_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder)
    wait, rest = (engine.chat.content_ids(Message(role="user", content=text)) for text in ("Wait", ":hello"))
    special = engine.chat.encode([Message(role="user", content="")]).ids[0]
    reply = iter([*wait, *[special] * 12, *rest, engine.chat.end_id])

    def drawn(logits: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((len(logits),), next(reply)), torch.zeros(len(logits))

    monkeypatch.setattr("selfimprove.engines.cpu.samples.choose", drawn)
    [[completion]] = run(engine, [ask(8, max_tokens=60, stop=("Wait:",))])
    assert (completion.text, completion.finish) == ("", "stop")


def test_only_allowed_outputs_are_generated_in_the_model_s_proportions_and_with_its_logprobs(
    engine: TransformersEngine, folder: Path
) -> None:
    allowed, n = ["yes", "7", "70", "no way"], 600
    completions = run(engine, [ask(3, n=n, allowed=allowed, max_tokens=20)])[0]
    counts = Counter(c.text for c in completions)
    assert set(counts) == set(allowed)
    assert all(c.finish == "stop" for c in completions)
    written: dict[str, list[int]] = {c.text: [*(c.token_ids or []), engine.chat.end_id] for c in completions}
    chances = dict.fromkeys(allowed, 1.0)
    for completion in {c.text: c for c in completions}.values():
        drawn = written[completion.text]
        table = full_forward(folder, prompt_ids(engine, ask(3)), drawn)
        np.testing.assert_allclose(completion.logprobs, table[torch.arange(len(drawn)), drawn].numpy(), atol=1e-5)  # type: ignore[arg-type]
        for place, token in enumerate(drawn):  # at each token, the model's probabilities of those that may follow
            possible = {ids[place] for ids in written.values() if ids[:place] == drawn[:place]}
            log_odds = torch.logsumexp(table[place, sorted(possible)], 0) - table[place, token]
            chances[completion.text] *= float(torch.exp(-log_odds))
    assert sum(chances.values()) == pytest.approx(1)
    for text, chance in chances.items():  # the draws are keyed, so the counts are fixed
        assert abs(counts[text] - n * chance) < 4 * (n * chance * (1 - chance)) ** 0.5, text
    beside = run(engine, [ask(1), ask(3, n=n, allowed=allowed, max_tokens=20)])
    assert beside[1] == completions
    assert beside[0] == run(engine, [ask(1)])[0]
