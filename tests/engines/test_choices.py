"""Choices (decisions by a single token): log-probabilities, entropies, label sets, shortened prompts, and an engine
over a trainer's weights (docs/reflect-rl.md, L4 to L6)."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Choice, Completion, EngineError, Request
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.openai import OpenAiEngine, OpenAiEngineConfig
from selfimprove.engines.sampling import choose, score_choices, uniforms
from selfimprove.models.loading import load_causal_lm
from tests.engines.asking import make_engine

LABELS = ("0", "1", "2", "a", "b")


@pytest.fixture(scope="module")
def engine(tiny: Path) -> TransformersEngine:
    return make_engine(tiny)


def ask(index: int, **changes: object) -> Request:
    question = Message(role="user", content=f"Mia has {index} apples and buys {7 * index}. How many has she now?")
    settings = {"seed": SeedKey(1, f"t{index}"), "max_tokens": 1, "choice": True, "allowed": LABELS}
    return Request(messages=[question], **(settings | changes))  # type: ignore[arg-type]


def run(engine: object, requests: list[Request]) -> list[Completion]:
    async def everything() -> list[Completion]:
        return [one for (one,) in await asyncio.gather(*(engine.generate(request) for request in requests))]  # type: ignore[attr-defined]

    return asyncio.run(everything())


def choice_of(completion: Completion) -> Choice:
    assert completion.choice is not None
    return completion.choice


def expected(tiny: Path, choice: Choice, ids: list[int] | None, temperature: float) -> tuple[float, float]:
    """Log-probability and entropy of the model's softmax, renormalised over ``ids``."""
    with torch.inference_mode():
        logits = load_causal_lm(tiny)(input_ids=torch.tensor([choice.prompt_ids])).logits[0, -1].double()
    full = torch.softmax(logits / temperature, -1)
    kept = full if ids is None else torch.zeros_like(full).index_copy(0, torch.tensor(ids), full[ids])
    kept = kept / kept.sum()
    return float(kept[choice.token].log()), float(-torch.special.xlogy(kept, kept).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("allowed", [LABELS, None])
def test_a_choice_is_scored_by_the_full_softmax_renormalised_over_the_allowed_labels(
    engine: TransformersEngine, tiny: Path, allowed: tuple[str, ...] | None, temperature: float
) -> None:
    ids = None if allowed is None else [engine.chat.content_ids(Message(role="user", content=x))[0] for x in allowed]
    for index, answer in enumerate(run(engine, [ask(i, allowed=allowed, temperature=temperature) for i in range(12)])):
        choice = choice_of(answer)
        assert choice.prompt_ids == engine.chat.encode(ask(index).messages, add_generation_prompt=True).ids
        logprob, entropy = expected(tiny, choice, ids, temperature or 1.0)
        assert (choice.logprob, choice.entropy) == pytest.approx((logprob, entropy), abs=1e-5)
        assert answer.token_ids == ([choice.token] if answer.finish == "length" else [])
        assert allowed is None or answer.text in allowed
        assert answer.logprobs == pytest.approx([expected(tiny, choice, None, 1.0)[0]], abs=1e-5)  # the model's own


def test_samples_of_a_choice_equal_separate_choices_with_their_seed_keys(engine: TransformersEngine) -> None:
    together = asyncio.run(engine.generate(ask(3, n=12)))
    assert together == run(engine, [ask(3, seed=SeedKey(1, "t3").at(sample)) for sample in range(12)])
    assert len({answer.text for answer in together}) > 1


def test_choices_from_different_lists_do_not_depend_on_other_requests(tiny: Path) -> None:
    requests = [ask(i, allowed=LABELS[: 2 + i % 4]) for i in range(20)] + [ask(i, allowed=None) for i in range(4)]
    requests += [ask(i, choice=False, allowed=None, max_tokens=9) for i in range(6)]
    together = run(make_engine(tiny), requests)
    alone = make_engine(tiny)
    assert [run(alone, [request])[0] for request in requests] == together
    assert run(make_engine(tiny), requests[::-1])[::-1] == together
    assert all(
        (answer.choice is not None) == request.choice for answer, request in zip(together, requests, strict=True)
    )


def test_a_choice_requires_distinct_single_token_outputs_and_max_tokens_1(
    engine: TransformersEngine,
) -> None:
    for allowed in (("0", "12"), ("0", "0"), ()):
        with pytest.raises(EngineError, match=r"distinct single tokens|empty"):
            run(engine, [ask(0, allowed=allowed)])
    with pytest.raises(EngineError, match="max_tokens"):
        run(engine, [ask(0, max_tokens=2)])
    assert run(engine, [ask(0)])[0].text in LABELS


def test_cut_left_shortens_an_over_long_prompt_on_the_left_and_leaves_room_for_new_tokens(
    engine: TransformersEngine,
) -> None:
    long = [Message(role="user", content="Tom reads 12 pages a day. " * 30)]
    with pytest.raises(EngineError, match="do not fit"):
        run(engine, [replace(ask(0), messages=long)])
    (answer,) = run(engine, [replace(ask(0), messages=long, cut_left=True)])
    whole = engine.chat.encode(long, add_generation_prompt=True).ids
    assert choice_of(answer).prompt_ids == whole[:1] + whole[-190:]  # the role's marker stays
    (short,) = run(engine, [ask(0, cut_left=True)])
    assert short == run(engine, [ask(0)])[0]


def test_an_engine_over_a_trainers_weights_uses_their_updates_and_leaves_them_trainable(tiny: Path) -> None:
    model = load_causal_lm(tiny)
    live = make_engine(tiny, model=model)
    before = run(live, [ask(1), ask(2)])
    assert before == run(make_engine(tiny), [ask(1), ask(2)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    logits = model(input_ids=torch.tensor([choice_of(before[0]).prompt_ids])).logits[0, -1]
    (-torch.log_softmax(logits, -1)[choice_of(before[0]).token]).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    live.forget_prefixes()
    after = run(live, [ask(1, seed=SeedKey(1, "t1")), ask(2)])
    assert choice_of(after[0]).entropy != choice_of(before[0]).entropy
    fresh = make_engine(tiny, model=model)  # ``live`` has kept nothing of the old weights
    assert run(fresh, [ask(1), ask(2)]) == after


def test_a_journaled_choice_is_repeated_exactly_without_a_new_request(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    with Journal(tmp_path / "journal") as journal:
        first = run(JournaledEngine(engine, journal, "policy"), [ask(3)])
    with Journal(tmp_path / "journal") as journal:
        again = JournaledEngine(engine, journal, "policy")
        asked = engine.stats.requests
        assert run(again, [ask(3)]) == first
        assert engine.stats.requests == asked
        run(again, [ask(3, choice=False)])  # a different request
        assert engine.stats.requests == asked + 1


def test_a_remote_engine_refuses_choices_and_top_k(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = OpenAiEngineConfig(engine="openai", base_url="http://127.0.0.1:9", model="m", api_key_env=None)
    for changes in ({"choice": True}, {"top_k": 5, "choice": False}):
        with pytest.raises(UserError, match="use engine transformers"):
            run(OpenAiEngine(cfg), [ask(0, allowed=None, **changes)])


def test_the_noise_of_a_key_is_the_published_sequence_of_splitmix64() -> None:
    """Its first outputs for the seed 1234567, of which the upper 52 bits are used."""
    outputs = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    noise = uniforms(np.full(3, 1234567, dtype=np.uint64), np.arange(3, dtype=np.uint64))
    assert noise.tolist() == [(output >> 12) / 2**52 for output in outputs]


def test_top_k_keeps_the_most_probable_tokens_and_their_proportions() -> None:
    logits = torch.log(torch.tensor([0.4, 0.1, 0.3, 0.2])).repeat(4000, 1)
    noise = torch.from_numpy(uniforms(np.arange(4000, dtype=np.uint64) * 7919, np.zeros(4000, dtype=np.uint64)))
    warm = torch.ones(4000)
    drawn, logprob = choose(logits, noise, warm, None, (), torch.full((4000,), 2))
    counts = torch.bincount(drawn, minlength=4) / 4000
    assert counts[[1, 3]].sum() == 0
    assert counts[[0, 2]].tolist() == pytest.approx([4 / 7, 3 / 7], abs=0.03)
    assert logprob.exp().tolist() == pytest.approx(logits.exp()[0, drawn].tolist())  # before filtering
    everything, _ = choose(logits, noise, warm, None, (), torch.zeros(4000, dtype=torch.int64))
    assert torch.equal(everything, choose(logits, noise, warm, None)[0])


def test_a_certain_choice_has_zero_entropy_and_no_nan() -> None:
    logits = torch.tensor([[0.0, 1000.0, -torch.inf]])
    logprob, entropy = score_choices(logits, torch.ones(1), torch.tensor([1]), None)
    assert (float(logprob), float(entropy)) == (0.0, 0.0)


def test_filtered_tokens_count_neither_for_the_probability_nor_for_the_entropy() -> None:
    logits, one = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1)
    logprob, entropy = score_choices(logits, one, torch.tensor([0]), None, None, torch.tensor([1]))
    assert (float(logprob), float(entropy)) == (0.0, 0.0)
    logprob, entropy = score_choices(logits, one, torch.tensor([0]), None, torch.tensor([0.7]), None)
    two = torch.log_softmax(logits[0, :2].double(), -1)
    assert float(logprob) == pytest.approx(float(two[0]))
    assert float(entropy) == pytest.approx(float(-(two.exp() * two).sum()))
    unfiltered = score_choices(logits, one, torch.tensor([0]), None)
    assert score_choices(logits, one, torch.tensor([0]), None, one, torch.tensor([0])) == unfiltered


@pytest.mark.parametrize("ids", [[3, 1, 2], [0, 1, 2, 3], [2, 0]])
@pytest.mark.parametrize("top_p", [0.1, 0.5])
def test_top_p_keeps_the_same_of_equally_probable_choices_for_draws_and_scores(ids: list[int], top_p: float) -> None:
    """Regression test: among ties, ``top_p`` scored the first ids of the list but drew from the lowest ids."""
    logits, one, narrow = torch.zeros(1, 4), torch.ones(1), torch.tensor([top_p])
    kept = sorted(ids)[: math.ceil(top_p * len(ids))]
    for noise in (0.0, 0.5, 0.99):
        drawn, _ = choose(logits, torch.tensor([noise], dtype=torch.float64), one, narrow, [([0], ids)])
        logprob, entropy = score_choices(logits, one, drawn, ids, narrow)
        assert int(drawn) in kept
        assert float(logprob.exp()) == pytest.approx(1 / len(kept))
        assert float(entropy) == pytest.approx(math.log(len(kept)))


def test_a_drawn_token_that_is_filtered_out_in_scoring_still_has_a_probability() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    logprob, _ = score_choices(logits, torch.ones(1), torch.tensor([1]), None, None, torch.tensor([1]))
    assert float(logprob) == pytest.approx(float(torch.log_softmax(logits[0, :2].double(), -1)[1]))


def test_top_k_counts_only_the_allowed_tokens() -> None:
    logits, noise = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), torch.tensor([0.9], dtype=torch.float64)
    drawn, _ = choose(logits, noise, torch.ones(1), None, [([0], [2, 3])], torch.tensor([1]))
    assert drawn.tolist() == [2]


def test_top_p_filters_the_tempered_distribution_for_draws_and_scores() -> None:
    """At temperature 0.5 the first token has 0.87, at 1 it would have 0.67."""
    logits, cold, narrow = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.5]), torch.tensor([0.8])
    drawn, _ = choose(logits, torch.tensor([0.99], dtype=torch.float64), cold, narrow)
    assert drawn.tolist() == [0]
    logprob, entropy = score_choices(logits, cold, drawn, None, narrow)
    assert (float(logprob), float(entropy)) == (0.0, 0.0)
