"""The policy during training: label head, packed prompts, adapters, dropout (docs/reflect-rl.md, L6, L22, L28)."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_objective import Decision
from selfimprove.methods.reflect_rl.rl_policy import (
    Policy,
    example,
    in_training_dtype,
    order,
    shrunk_head,
    weights_hash,
)
from selfimprove.models.adapters import complete
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merging import full_weights
from selfimprove.training.loading import without_dropout
from selfimprove.training.packing import lay_out
from tests.support.sentences import refused_with

IDS = [40, 7, 12, 300, 55]
CONTEXT = 128


def load(folder: Path, labels: list[int] | None = IDS, **params: object) -> Policy:
    return Policy(folder, RLParams.model_validate(params).loading(CONTEXT), 3, labels)


def decisions(count: int = 23, allowed: list[int] | None = IDS) -> list[Decision]:
    draw = rng("decisions")
    made = []
    for _ in range(count):
        prompt = [draw.randrange(20, 300) for _ in range(draw.randrange(3, 40))]
        made.append(Decision(prompt, draw.choice(allowed or IDS), allowed, 0.0, 0.0, 0.0))
    return made


def logprobs(policy: Policy, some: list[Decision], row_tokens: int = 64, micro_tokens: int = 200) -> torch.Tensor:
    """Log-probabilities of all decisions, in order, computed in the layout of an update."""
    examples = [example(one) for one in some]
    (share,) = lay_out(range(len(some)), [len(one.ids) for one in examples], row_tokens, micro_tokens, 1)
    out = torch.empty(len(some))
    for micro in share:
        values, _ = policy.evaluate(micro, some, examples)
        out[order(micro)] = values.detach()
    return out


def expected(folder: Path, some: list[Decision]) -> torch.Tensor:
    """The reference: each prompt alone through the plain model, the full softmax renormalised over allowed tokens."""
    model, out = load_causal_lm(folder), []
    with torch.inference_mode():
        for one in some:
            full = torch.softmax(model(input_ids=torch.tensor([one.prompt])).logits[0, -1], -1)
            out.append((full[one.token] / (1.0 if one.allowed is None else full[one.allowed].sum())).log())
    return torch.stack(out)


def test_top_k_of_the_rollouts_also_applies_in_training(tiny: Path) -> None:
    some = decisions(5)
    free = torch.stack([logprobs(load(tiny), [replace(one, token=token) for one in some]) for token in IDS])
    cfg = RLParams.model_validate({"top_k": 2})
    policy = Policy(tiny, cfg.loading(CONTEXT), 3, IDS, cfg)
    narrow = torch.stack([logprobs(policy, [replace(one, token=token) for one in some]) for token in IDS])
    best = free.topk(2, dim=0)
    kept = torch.log_softmax(best.values, 0)
    torch.testing.assert_close(narrow.gather(0, best.indices), kept)


def test_a_shrunk_head_is_the_full_softmax_renormalised_over_the_labels(tiny: Path) -> None:
    some = decisions()
    assert torch.allclose(logprobs(load(tiny), some), expected(tiny, some), atol=1e-5)


def test_the_shrunk_head_is_frozen_has_no_bias_and_is_removed_on_exit(tiny: Path) -> None:
    model = load_causal_lm(tiny)
    whole, ids = model.get_output_embeddings(), torch.tensor([[5, 9, 30]])
    before = model(input_ids=ids).logits
    with shrunk_head(model, IDS) as head:
        assert model.get_output_embeddings() is head
        assert head.bias is None
        assert not head.weight.requires_grad
        assert torch.equal(head.weight, whole.weight[IDS])
        assert torch.allclose(model(input_ids=ids).logits, before[..., IDS], atol=1e-5)
    assert model.get_output_embeddings() is whole
    assert torch.equal(model(input_ids=ids).logits, before)
    with pytest.raises(ZeroDivisionError), shrunk_head(model, IDS):
        raise ZeroDivisionError
    assert model.get_output_embeddings() is whole


def test_without_a_shrunk_head_the_softmax_covers_the_whole_vocabulary(tiny: Path) -> None:
    some = decisions(allowed=None)
    assert torch.allclose(logprobs(load(tiny, None), some), expected(tiny, some), atol=1e-5)


def test_labels_that_are_not_listed_are_masked(tiny: Path) -> None:
    some = [*decisions(6), *decisions(6, IDS[1:3]), *decisions(6, IDS[3:])]
    for labels in (IDS, None):
        assert torch.allclose(logprobs(load(tiny, labels), some), expected(tiny, some), atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packing_does_not_change_probabilities(tiny: Path, attention: str) -> None:
    some = decisions()
    policy = load(tiny, attention=attention)
    assert torch.allclose(logprobs(policy, some), expected(tiny, some), atol=1e-5)
    for row_tokens, micro_tokens in ((1, 50), (200, 400), (60, 5000)):
        assert torch.allclose(logprobs(policy, some, row_tokens, micro_tokens), logprobs(policy, some), atol=1e-5)


def test_the_head_is_frozen_and_the_body_is_trained(tiny: Path) -> None:
    policy, some = load(tiny), decisions(4)
    head = policy.model.get_output_embeddings().weight
    values, hidden = policy.evaluate(((0, 1), (2, 3)), some, [example(one) for one in some])
    values.sum().backward()
    assert head.grad is None
    assert not any(parameter is head for parameter in policy.trainable)
    assert all(parameter.grad is not None for parameter in policy.trainable)
    assert not hidden.requires_grad
    assert hidden.shape == (4, 32)
    rows = [IDS.index(one.token) for one in some]
    again = torch.log_softmax(linear(hidden, head.detach()[IDS]), -1)[range(4), rows]
    assert torch.allclose(values, again, atol=1e-5)


def test_a_tied_output_layer_is_frozen_with_the_embedding(tiny: Path, tmp_path: Path) -> None:
    model = load_causal_lm(tiny)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    policy = load(tmp_path)
    assert not any(parameter is policy.model.get_input_embeddings().weight for parameter in policy.trainable)
    assert policy.trainable


def test_an_output_layer_with_a_bias_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selfimprove.methods.reflect_rl import rl_policy

    model = load_causal_lm(tiny)
    model.lm_head = torch.nn.Linear(32, model.lm_head.out_features)
    monkeypatch.setattr(rl_policy, "load_model", lambda *_, **__: (model, None))
    with pytest.raises(UserError, match="has a bias; set shrink_head: false"):
        load(tiny)


def test_adapters_in_the_frozen_output_layer_alone_are_refused(tiny: Path) -> None:
    lora = {"rank": 2, "targets": ["lm_head"]}
    with refused_with(r"^rl\.lora\.targets: \['lm_head'\] leaves nothing to train, since shrink_head freezes"):
        load(tiny, lora=lora)
    assert load(tiny, None, lora=lora).trainable


@pytest.mark.slow
def test_only_adapters_are_trained_and_the_written_model_has_the_same_probabilities(tiny: Path, tmp_path: Path) -> None:
    policy, some = load(tiny, lora={"rank": 4, "alpha": 8}), decisions(8)
    assert torch.allclose(logprobs(policy, some), expected(tiny, some), atol=1e-5)
    assert {"lora_A", "lora_B"} == {name.split(".")[-3] for name in policy.state()}
    optimizer = torch.optim.Adam(policy.trainable, lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        values, _ = policy.evaluate((tuple(range(8)),), some, [example(one) for one in some])
        values.sum().neg().backward()
        optimizer.step()
    after = logprobs(policy, some)
    assert (after - expected(tiny, some)).abs().max() > 0.05
    policy.write(tmp_path / "model", tmp_path)
    complete(tiny, tmp_path / "model", "float32")
    assert torch.allclose(expected(full_weights(tmp_path / "model"), some), after, atol=1e-4)


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 4, "targets": ["q_proj", "lm_head"]}])
def test_gradient_checkpointing_does_not_change_gradients(tiny: Path, lora: object) -> None:
    some, gradients = decisions(6), []
    for checkpointing in (False, True):
        policy = load(tiny, lora=lora, gradient_checkpointing=checkpointing)
        values, _ = policy.evaluate((tuple(range(6)),), some, [example(one) for one in some])
        values.sum().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.trainable]))
    assert torch.allclose(*gradients, atol=1e-5)  # type: ignore[arg-type,misc]
    assert gradients[0].abs().max() > 0


def test_a_policy_restored_from_its_state_is_bit_identical(tiny: Path) -> None:
    policy, other = load(tiny), load(tiny)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.add_(0.01)
    other.restore({name: value.clone() for name, value in policy.state().items()})
    assert weights_hash(other.model) == weights_hash(policy.model) != weights_hash(load(tiny).model)


def test_dropout_is_off_in_training_mode(tiny: Path) -> None:
    policy, some = load(tiny), decisions(4)
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
        layer.dropout = 0.5  # as in OPT's layers
        layer.mlp = torch.nn.Sequential(layer.mlp, torch.nn.Dropout(0.5))
    without_dropout(policy.model)
    assert {layer.dropout for layer in policy.model.model.layers} == {0.0}
    policy.model.train()
    ids = torch.tensor([some[0].prompt])
    first = policy.model(input_ids=ids).logits
    assert torch.equal(policy.model(input_ids=ids).logits, first)


def test_dropout_in_the_model_s_config_is_off_in_updates(tiny: Path, tmp_path: Path) -> None:
    folder, some = shutil.copytree(tiny, tmp_path / "model"), decisions(8)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    for checkpointing in (False, True):
        policy = load(folder, gradient_checkpointing=checkpointing)
        assert torch.allclose(logprobs(policy, some), expected(tiny, some), atol=1e-5)


def test_adapters_of_a_quantised_model_stay_in_float32_and_its_other_weights_get_the_training_dtype() -> None:
    frozen, adapter = torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 2)
    in_training_dtype(torch.nn.Sequential(frozen, adapter), torch.bfloat16)
    assert {weight.dtype for weight in frozen.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in adapter.parameters()} == {torch.float32}


@pytest.mark.parametrize("quantize", ["8bit", "4bit"])
def test_quantised_weights_require_their_package(tiny: Path, quantize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "bitsandbytes" else find(name, *a)
    )
    with pytest.raises(UserError, match="bitsandbytes"):
        load(tiny, lora={"quantize": quantize})


def test_a_replayed_choice_that_top_k_now_excludes_has_a_probability(tiny: Path) -> None:
    cfg = RLParams.model_validate({"top_k": 1})
    policy = Policy(tiny, cfg.loading(CONTEXT), 3, IDS, cfg)
    some = [replace(one, token=token) for one in decisions(3) for token in IDS]
    assert logprobs(policy, some).isfinite().all()
