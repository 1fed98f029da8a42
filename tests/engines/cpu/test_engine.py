"""The default engine with tiny random models: exactness, sampling, the queue, invalid input."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, EngineError, Request
from selfimprove.engines.cpu.decoder import Decoder
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.cpu.slots import CacheShape, PrefixCache, Rows
from selfimprove.models.loading import load_causal_lm
from tests.engines.asking import FEW_SHOT, ask, full_forward, make_engine, prompt_ids, run
from tests.support.sentences import refused_with
from tests.support.tiny import train_tokenizer

# --- exactness -------------------------------------------------------------------------------------------------------


def test_results_do_not_depend_on_neighbours_order_concurrency_or_restart(folder: Path) -> None:
    requests = [ask(i, turns=i % 3, n=1 + i % 3, top_p=(1.0, 0.9)[i % 2]) for i in range(60)]
    engine = make_engine(folder)
    together = run(engine, requests)
    assert any(c.finish == "length" for cs in together for c in cs)
    # Equality of dataclasses compares every token and every bit of the log-probabilities.
    backwards = run(make_engine(folder), requests[::-1])
    assert backwards[::-1] == together
    assert run(make_engine(folder), requests, at_once=3) == together
    for index in (7, 23, 59):
        assert run(make_engine(folder), [requests[index]]) == [together[index]]
    assert run(engine, requests) == together  # now with a warm prefix cache


def test_the_prefix_cache_changes_no_bit_and_reuses_shared_prefixes(folder: Path) -> None:
    cold, warm = make_engine(folder), make_engine(folder)
    requests = [ask(i, turns=2) for i in range(12)]
    without = []
    for request in requests:
        cold.forget_prefixes()
        without += run(cold, [request])
    assert cold.stats.cached_prompt_tokens == 0
    assert run(warm, requests, at_once=1) == without
    shared = len(warm.chat.encode(FEW_SHOT * 2).ids) // 16 * 16
    assert warm.stats.cached_prompt_tokens >= 11 * shared
    again = warm.stats.prefill_blocks
    run(warm, requests)
    # Only each prompt's last, partial block is prefilled again.
    assert warm.stats.prefill_blocks - again <= len(requests)


def test_equal_blocks_after_different_prefixes_are_not_confused(folder: Path) -> None:
    # Blocks X Z, then Y W, then Y Z: the third prompt must not reuse the Z that was prefilled after X.
    x, y, z, w = ("0 " + "pages " * 20, "1 " + "pages " * 20, "apples and pages, " * 8, "Tom reads " * 12)
    prompts = [[Message(role="user", content=text)] for text in (x + z, y + w, y + z)]
    requests = [Request(messages, SeedKey(1, "same"), max_tokens=6) for messages in prompts]
    one_by_one = [run(make_engine(folder), [request])[0] for request in requests]
    engine = make_engine(folder)
    blocks = [engine._prompts.cache.names(prompt_ids(engine, request)) for request in requests]
    assert blocks[2][0] == blocks[1][0] != blocks[0][0]
    assert run(engine, requests, at_once=1) == one_by_one
    assert 0 < engine.stats.cached_prompt_tokens <= len(prompt_ids(engine, requests[1]))


def test_a_bounded_prefix_cache_keeps_its_limit_and_changes_no_completion(folder: Path) -> None:
    engine = make_engine(folder)
    engine._prompts.cache._most = 3
    expected = run(make_engine(folder), [ask(i, turns=2) for i in range(10)])
    assert run(engine, [ask(i, turns=2) for i in range(10)]) == expected
    assert len(engine._prompts.cache) == 3


def test_the_least_recently_used_block_is_dropped_from_a_full_prefix_cache() -> None:
    cache = PrefixCache(block=2, most=3)
    a, b, c, d = names = [cache.names([number, 0])[0] for number in range(4)]
    for name in (a, b, c):
        cache.keep(name, torch.zeros(1))
    assert cache.find([a])
    cache.keep(b, torch.zeros(1))  # prefilled again, by a prompt that started at the same time
    cache.keep(d, torch.zeros(1))
    assert [bool(cache.find([name])) for name in names] == [True, True, False, True]


def test_a_block_is_not_found_if_one_before_it_was_dropped() -> None:
    cache = PrefixCache(block=2, most=1)
    names = cache.names([1, 2, 3, 4])
    for name in names:
        cache.keep(name, torch.zeros(1))
    assert (len(cache), cache.find(names)) == (1, [])


def test_samples_of_a_request_equal_separate_requests_with_their_seed_keys(engine: TransformersEngine) -> None:
    together = run(engine, [ask(5, n=11)])[0]
    apart = run(engine, [ask(5, seed=SeedKey(1, "t5").at(i)) for i in range(11)])
    assert together == [completions[0] for completions in apart]
    assert len({tuple(c.token_ids or ()) for c in together}) == 11


def test_a_request_for_no_samples_gets_none(engine: TransformersEngine) -> None:
    assert run(engine, [ask(5, n=0)]) == [[]]


def test_samples_of_a_request_share_one_prefill_of_the_prompt(folder: Path) -> None:
    engine = make_engine(folder)
    request = ask(5, turns=1, n=20)
    run(engine, [request])
    assert engine.stats.prefill_blocks == -(-(len(prompt_ids(engine, request)) - 1) // 16)


# --- sampling --------------------------------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_model_without_temperature_or_top_p(engine: TransformersEngine, folder: Path) -> None:
    for request in (ask(1), ask(2, turns=2, temperature=0.7), ask(3, top_p=0.5), ask(4, temperature=0.0)):
        completion = run(engine, [request])[0][0]
        ids = completion.token_ids or []
        drawn = ids if completion.finish == "length" else [*ids, engine.chat.end_id]
        table = full_forward(folder, prompt_ids(engine, request), drawn)
        expected = table[torch.arange(len(drawn)), drawn]
        np.testing.assert_allclose(completion.logprobs, expected.numpy(), atol=1e-5)  # type: ignore[arg-type]


def test_greedy_decoding_equals_generate_of_transformers(engine: TransformersEngine, folder: Path) -> None:
    model = load_causal_lm(folder)
    for index in range(6):
        request = ask(index, turns=index % 2, temperature=0.0, max_tokens=24)
        prompt = torch.tensor([prompt_ids(engine, request)])
        with torch.inference_mode():
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)
        expected = [i for i in out[0, prompt.shape[1] :].tolist() if i not in engine.chat.stop_ids]
        assert run(engine, [request])[0][0].token_ids == expected


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 1.0), (1.0, 0.7)])
def test_first_tokens_follow_the_distribution(
    engine: TransformersEngine, folder: Path, temperature: float, top_p: float
) -> None:
    n = 3000
    request = ask(9, n=n, temperature=temperature, top_p=top_p, max_tokens=1)
    first = [(c.token_ids or [engine.chat.end_id])[0] for c in run(engine, [request])[0]]
    logits = full_forward(folder, prompt_ids(engine, request), [0])[0].double()
    expected = torch.softmax(logits / temperature, -1)
    if top_p < 1:
        ordered, order = expected.sort(descending=True)
        keep = order[: int((ordered.cumsum(0) < top_p).sum()) + 1]
        assert set(first) <= set(keep.tolist())
        expected = torch.zeros_like(expected).index_copy(0, keep, expected[keep] / expected[keep].sum())
    counts = torch.bincount(torch.tensor(first), minlength=len(expected)).double()
    common = expected * n >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    wanted = torch.cat([expected[common], expected[~common].sum()[None]]) * n
    held = wanted > 0
    chi2 = float(((observed - wanted)[held] ** 2 / wanted[held]).sum())
    freedom = int(held.sum()) - 1
    # The draws are keyed, so the outcome is fixed: within four standard deviations of the chi-square mean.
    assert abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5


def test_completions_differ_by_run_task_turn_and_sample(engine: TransformersEngine) -> None:
    keys = [SeedKey(1, "a"), SeedKey(2, "a"), SeedKey(1, "b"), SeedKey(1, "a", turn=1), SeedKey(1, "a", sample=1)]
    texts = [c[0].text for c in run(engine, [ask(3, seed=key, max_tokens=16) for key in keys])]
    assert len(set(texts)) == len(keys)


# --- the queue -------------------------------------------------------------------------------------------------------


def test_occupancy_is_at_most_1_and_high_while_requests_wait(folder: Path) -> None:
    engine = make_engine(folder)
    run(engine, [ask(i, turns=i % 2) for i in range(120)])
    stats = engine.stats
    assert 0.9 < stats.busy_slot_steps / stats.slot_steps <= 1.0
    assert stats.generated_tokens == stats.busy_slot_steps
    assert 0.5 < stats.prefill_blocks / stats.prefill_block_slots <= 1.0
    assert (stats.requests, stats.completions) == (120, 120)


def test_episodes_of_several_turns_do_not_depend_on_concurrent_episodes(engine: TransformersEngine) -> None:
    async def episode(index: int) -> list[str]:
        request = ask(index)
        texts: list[str] = []
        messages = list(request.messages)
        for turn in range(3):
            seed = SeedKey(1, f"e{index}", turn)
            answer = (await engine.generate(Request(messages, seed, max_tokens=8)))[0]
            texts.append(answer.text)
            messages.append(Message(role="assistant", content=answer.text, token_ids=answer.token_ids))
            messages.append(Message(role="user", content="Try again!"))
        return texts

    async def all_of(count: int) -> list[list[str]]:
        return await asyncio.gather(*(episode(i) for i in range(count)))

    assert asyncio.run(all_of(40))[:3] == asyncio.run(all_of(3))


def test_a_cancelled_call_frees_its_slots_and_affects_no_other_call(engine: TransformersEngine) -> None:
    expected = run(engine, [ask(2)])

    async def cancel_one() -> list[list[Completion]]:
        doomed = asyncio.ensure_future(engine.generate(ask(1, n=30, max_tokens=100)))
        other = asyncio.ensure_future(engine.generate(ask(2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        doomed.cancel()
        result = await other
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return [result]

    assert asyncio.run(cancel_one()) == expected
    assert not engine._samples.busy.any()


def test_close_cancels_waiting_calls(folder: Path) -> None:
    engine = make_engine(folder)

    async def close_early() -> None:
        call = asyncio.ensure_future(engine.generate(ask(1, n=30, max_tokens=100)))
        await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(close_early())


# --- invalid input ---------------------------------------------------------------------------------------------------


def test_an_empty_prompt_is_refused(folder: Path) -> None:
    engine = make_engine(folder, chat_template="text")
    with pytest.raises(EngineError, match="the prompt is empty"):
        run(engine, [Request([Message(role="user", content="")], SeedKey(1, "t"), max_tokens=4)])


def test_an_over_long_prompt_is_refused_with_its_size_and_no_other_request_fails(engine: TransformersEngine) -> None:
    async def both() -> tuple[object, object]:
        return await asyncio.gather(  # type: ignore[return-value]
            engine.generate(ask(1, turns=6)), engine.generate(ask(1)), return_exceptions=True
        )

    bad, good = asyncio.run(both())
    size = engine.prompt_tokens(ask(1, turns=6).messages)
    assert isinstance(bad, EngineError)
    assert f"{size} tokens" in str(bad)
    assert "context of 192" in str(bad)
    assert isinstance(good, list)


def test_a_prompt_that_exactly_fits_is_accepted_and_a_longer_one_is_refused(engine: TransformersEngine) -> None:
    text = "a"
    while engine.fits([Message(role="user", content=text)], 10):
        text += "1"
    request = Request([Message(role="user", content=text)], SeedKey(1, "long"), max_tokens=9)
    assert run(engine, [request])[0][0].token_ids
    with pytest.raises(EngineError):
        run(engine, [Request([Message(role="user", content=text + "1")], SeedKey(1, "long"), max_tokens=9)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0}, {"temperature": -1.0}, {"temperature": 1e-40}, {"temperature": math.nan}, {"top_p": 0.0},
        {"top_p": 1e-46}, {"top_p": 1.5}, {"top_p": math.nan}, {"top_k": -1}, {"top_k": 1 << 63}, {"allowed": []},
        {"n": -1},
    ],
)  # fmt: skip
def test_invalid_requests_are_refused(engine: TransformersEngine, wrong: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        run(engine, [ask(1, **wrong)])


def test_an_invalid_model_folder_is_reported_in_one_line(folder: Path, tmp_path: Path) -> None:
    def broken(name: str) -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    no_template = broken("no-template")
    config = json.loads((no_template / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (no_template / "tokenizer_config.json").write_text(json.dumps(config))
    no_weights = broken("no-weights")
    (no_weights / "model.safetensors").unlink()
    torn_weights = broken("torn-weights")
    whole = (torn_weights / "model.safetensors").read_bytes()
    (torn_weights / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    other_tokenizer = broken("other-tokenizer")
    train_tokenizer(other_tokenizer, vocab_size=340)
    other_shape = broken("other-shape")
    shape = json.loads((other_shape / "config.json").read_text())
    (other_shape / "config.json").write_text(json.dumps(shape | {"num_hidden_layers": 3}))
    no_config = broken("no-config")
    (no_config / "config.json").unlink()
    cases = {
        tmp_path / "nowhere": "does not exist",
        no_template: "no chat template",
        no_weights: "safetensors",
        torn_weights: "cannot be loaded",
        other_tokenizer: "ids, but the model only",
        other_shape: "lack",
        no_config: "config.json",
    }
    for place, words in cases.items():
        with pytest.raises(UserError, match=words) as caught:
            make_engine(place)
        assert str(place) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="lower context"):
        make_engine(folder, context=1024)


def test_exhausted_memory_of_a_gpu_ends_every_call_with_the_params_that_need_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 79.11 GiB.")

    said = (
        r"^engine transformers: the GPU's memory is exhausted \(20\.00 MiB more were needed\); lower the engine's "
        r"slots \(8\), context \(192\) or prefill_rows \(4\)\.$"
    )
    engine = make_engine(folder)
    monkeypatch.setattr(engine._decoder, "step", full)

    async def both() -> Any:
        return await asyncio.gather(engine.generate(ask(1)), engine.generate(ask(2)), return_exceptions=True)

    for error in asyncio.run(both()):
        with refused_with(said):
            raise error
    monkeypatch.setattr(Decoder, "__init__", full)
    with refused_with(said):
        make_engine(folder)


def test_a_kv_cache_larger_than_the_memory_is_refused(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"a KV cache of 8192 rows of 10000000 tokens .* take 312,500 GiB of memory, but"
    ):
        Rows(CacheShape(2, 4, 64, torch.float32), 8192, 10**7, torch.device("cpu"))
