"""Packed rows train like single sequences, and finetune writes the documented model and report."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.modules.module import register_module_forward_pre_hook

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.models.merging import full_weights
from selfimprove.training.config import LoraConfig
from selfimprove.training.encode import EncodedExample, encode_examples
from selfimprove.training.job import join
from selfimprove.training.launch import finetune
from selfimprove.training.loading import rope_factor
from selfimprove.training.objective import example_scales
from selfimprove.training.packing import pack_rows
from selfimprove.training.rows import render
from selfimprove.training.segments import attend
from selfimprove.training.trainer import SftJob, WeightedTrainer
from tests.support.sentences import refused_with
from tests.training.small_runs import PARAMS, Maker, load, loss_and_gradients, run, tuned


def padded(examples: list[EncodedExample], scales: dict[int, float], pad: int) -> dict[str, torch.Tensor]:
    """The plain layout to compare with: one example a row, right padding, a 2-D mask and no position ids."""
    width = max(len(one.ids) for one in examples)
    ids = torch.full((len(examples), width), pad)
    mask = torch.zeros(len(examples), width, dtype=torch.long)
    coefficients = torch.zeros(len(examples), width)
    for row, one in enumerate(examples):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        mask[row, : len(one.ids)] = 1
        coefficients[row, : len(one.ids)] = torch.tensor(one.token_weights) * scales[row]
    return {"input_ids": ids, "attention_mask": mask, "coefficients": coefficients}


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2", "segments"])
def test_packed_loss_and_gradients_equal_the_padded_ones(tiny: Path, dialogues: Maker, attention: str) -> None:
    chat = ChatFormat.load(tiny)
    examples, _ = encode_examples(dialogues(12), chat, 300)
    scales = dict(enumerate(example_scales(examples, "example_mean", "none")))
    rows = pack_rows(range(12), [len(one.ids) for one in examples], 300)
    assert any(len(row) > 2 for row in rows)
    micros = [tuple(rows[:2]), tuple(rows[2:]), ()]
    packed = [render(micro, examples, scales, chat.pad_id, attention) for micro in micros]
    if attention == "flash_attention_2":
        # Without a GPU: the same inputs (one row, positions that restart, no mask) through sdpa, which finds the
        # examples in the positions as FlashAttention does.
        assert [p["input_ids"].shape[0] for p in packed] == [1, 1, 1]
        assert all("attention_mask" not in p for p in packed)
    model = load(tiny, "sdpa" if attention == "flash_attention_2" else attention)
    loss, gradients = loss_and_gradients(model, packed)
    plain = load(tiny, "eager" if attention == "eager" else "sdpa")
    expected_loss, expected = loss_and_gradients(plain, [padded(examples, scales, chat.pad_id)])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for got, want in zip(gradients, expected, strict=True):
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))


def test_segments_attend_separately_with_fewer_key_heads_and_refuse_unsupported_attention() -> None:
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 9, 8, generator=rng) for heads in (4, 2, 2))
    module = torch.nn.Linear(1, 1)
    out, _ = attend(module, query, key, value, None, scaling=0.3, segments=[4, 5], sliding_window=5)
    for start, stop in ((0, 4), (4, 9)):
        scores = 0.3 * query[..., start:stop, :] @ key[..., start:stop, :].repeat_interleave(2, 1).transpose(2, 3)
        future = torch.ones(stop - start, stop - start, dtype=torch.bool).triu(1)
        expected = scores.masked_fill(future, -torch.inf).softmax(-1) @ value[..., start:stop, :].repeat_interleave(
            2, 1
        )
        assert torch.allclose(out[:, start:stop], expected.transpose(1, 2), atol=1e-6)
    for odd, other in (
        ({"segments": None}, "sdpa"),
        ({"segments": [4, 5], "sliding_window": 4}, "flash_attention_2"),
        ({"segments": [9], "softcap": 30.0}, "eager"),
        ({"segments": [9], "s_aux": torch.zeros(4)}, "eager"),
    ):
        with pytest.raises(UserError, match=f"segments does not support the attention of Linear; set {other}"):
            attend(module, query, key, value, None, **odd)


def test_segments_give_the_losses_of_masked_rows_without_padding(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    examples = dialogues(20)
    masked = run(tiny, examples, tmp_path / "masked", PARAMS)
    apart = run(tiny, examples, tmp_path / "apart", tuned(attention="segments"))
    assert [loss for _, loss in apart.loss] == pytest.approx([loss for _, loss in masked.loss], rel=1e-4)
    assert apart.padding == 0.0 < masked.padding
    assert apart.tokens == apart.real_tokens == masked.real_tokens


def test_micro_batches_and_rows_do_not_change_the_losses(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    examples = dialogues(20)
    wide = run(tiny, examples, tmp_path / "wide", PARAMS)
    narrow = run(tiny, examples, tmp_path / "narrow", tuned(row_tokens=1, micro_batch_tokens=1))
    assert [loss for _, loss in narrow.loss] == pytest.approx([loss for _, loss in wide.loss], rel=1e-4)
    assert wide.steps == len(wide.loss) == 5


def test_the_first_loss_equals_the_definition_on_the_untrained_model(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    examples = dialogues(8)
    report = run(tiny, examples, tmp_path, tuned(epochs=1))
    encoded, _ = encode_examples(examples, ChatFormat.load(tiny), 300)
    model = load(tiny)
    total = 0.0
    for one in encoded:
        ids = torch.tensor([one.ids])
        with torch.no_grad():
            log_p = model(ids).logits.log_softmax(-1)[0]
        learnt = [t for t, weight in enumerate(one.token_weights) if weight]
        total += one.weight * -sum(float(log_p[t - 1, one.ids[t]]) for t in learnt) / len(learnt)
    assert report.loss[0][1] == pytest.approx(total / 8, rel=1e-5)


def test_the_same_call_gives_the_same_bytes_and_counts(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    examples = dialogues(20)
    reports = [run(tiny, examples, tmp_path / name, PARAMS) for name in "ab"]
    assert reports[0].model_dump(exclude={"timing"}) == reports[1].model_dump(exclude={"timing"})
    files = [{f.name: f.read_bytes() for f in (tmp_path / name / "model").iterdir()} for name in "ab"]
    assert files[0] == files[1]
    assert set(files[0]) >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    report, encoded = reports[0], encode_examples(examples, ChatFormat.load(tiny), 300)[0]
    assert report.examples == 40
    assert report.real_tokens == 2 * sum(len(one.ids) for one in encoded)
    assert report.trained_tokens == 2 * sum(one.trained for one in encoded)
    assert report.timing.tokens_per_second * report.timing.seconds == pytest.approx(report.real_tokens)
    assert report.padding == pytest.approx(1 - report.real_tokens / report.tokens)
    assert report.mean_weight == pytest.approx(sum(one.weight for one in encoded) / 20)
    assert ChatFormat.load(tmp_path / "a" / "model").encode(examples[0].messages) == ChatFormat.load(tiny).encode(
        examples[0].messages
    )
    assert load(tmp_path / "a" / "model").config.use_cache  # off in training; without it, generating is slow
    before, after = load(tiny).state_dict(), load(tmp_path / "a" / "model").state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_training_lowers_the_loss(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    report = run(tiny, dialogues(8), tmp_path, tuned(epochs=12, lr=3e-3, schedule="constant", batch_size=4))
    assert report.loss[-1][1] < 0.5 * report.loss[0][1]


def test_weights_normalised_by_batch_have_mean_one(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    plain = run(tiny, dialogues(16), tmp_path / "plain", PARAMS)
    normal = run(tiny, dialogues(16), tmp_path / "normal", PARAMS, weight_normalization="batch")
    assert normal.mean_weight == pytest.approx(1.0)
    assert normal.raw_mean_weight == plain.raw_mean_weight == pytest.approx(plain.mean_weight)
    assert normal.loss != plain.loss


def test_max_tokens_overrides_epochs_and_is_reached_in_the_last_step(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    examples = dialogues(10)
    total = sum(len(one.ids) for one in encode_examples(examples, ChatFormat.load(tiny), 300)[0])
    report = run(tiny, examples, tmp_path, tuned(epochs=0, max_train_tokens=7), max_train_tokens=3 * total)
    assert 3 * total <= report.real_tokens < 3 * total + 8 * 300
    assert report.steps == len(report.loss)


@pytest.fixture(scope="module")
def plain_losses(tiny: Path, dialogues: Maker, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of the plain run on 16 dialogues, to compare changed runs with."""
    report = run(tiny, dialogues(16), tmp_path_factory.mktemp("plain"), PARAMS)
    return [loss for _, loss in report.loss]


KNOBS: list[dict[str, Any]] = [
    {"lr": 2e-3},
    {"schedule": "linear"},
    {"schedule": "constant"},
    {"warmup_ratio": 0.5},
    {"weight_decay": 10.0},
    {"betas": (0.5, 0.9)},
    {"grad_clip": 1e-9},
    {"reduction": "token_mean"},
    {"batch_size": 4},
    {"dtype": "bfloat16"},
]


@pytest.mark.parametrize("changes", KNOBS, ids=str)
def test_every_setting_changes_the_losses(
    tiny: Path, dialogues: Maker, tmp_path: Path, plain_losses: list[float], changes: dict[str, Any]
) -> None:
    report = run(tiny, dialogues(16), tmp_path, tuned(**changes))
    assert [loss for _, loss in report.loss] != plain_losses
    dtype = json.loads((tmp_path / "model" / "config.json").read_text())["dtype"]
    assert dtype == changes.get("dtype", "float32")


def test_gradient_checkpointing_does_not_change_the_losses(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    examples = dialogues(8)
    plain = run(tiny, examples, tmp_path / "plain", PARAMS)
    saving = run(tiny, examples, tmp_path / "saving", tuned(gradient_checkpointing=True))
    assert [loss for _, loss in saving.loss] == pytest.approx([loss for _, loss in plain.loss], rel=1e-5)


@pytest.mark.parametrize("changes", [{}, {"attention": "segments"}, {"lora": {"rank": 4}}], ids=str)
def test_gradient_checkpointing_computes_each_layer_a_second_time(
    tiny: Path, dialogues: Maker, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """It saves memory by dropping a layer's activations and recomputing them in the backward pass."""
    passes: dict[bool, int] = {}
    for saving in (False, True):
        seen: list[object] = []

        def count(module: torch.nn.Module, *_: Any, seen: list[object] = seen) -> None:
            if type(module).__name__ == "LlamaMLP":
                seen.append(module)

        with register_module_forward_pre_hook(count):
            run(tiny, dialogues(8), tmp_path / str(saving), tuned(gradient_checkpointing=saving, **changes))
        passes[saving] = len(seen)
    assert passes[True] == 2 * passes[False] > 0


@pytest.mark.slow
def test_lora_changes_its_targets_by_at_most_its_rank(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    params = tuned(lora=LoraConfig(rank=4, alpha=8, dropout=0.1).model_dump(), lr=1e-2, epochs=4)
    report = run(tiny, dialogues(16), tmp_path, params)
    before, after = load(tiny).state_dict(), load(full_weights(tmp_path / "model")).state_dict()
    assert before.keys() == after.keys()
    assert torch.equal(before["model.embed_tokens.weight"], after["model.embed_tokens.weight"])
    moved = after["model.layers.0.self_attn.q_proj.weight"] - before["model.layers.0.self_attn.q_proj.weight"]
    assert 0 < torch.linalg.matrix_rank(moved, rtol=1e-3) <= 4
    assert report.loss[-1][1] < report.loss[0][1]


def test_rope_is_scaled_linearly_if_the_length_exceeds_the_model_s(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    assert (rope_factor(512, 512), rope_factor(513, 512), rope_factor(2048, 512)) == (None, 2, 4)
    report = run(tiny, dialogues(8), tmp_path, tuned(max_length=1000, epochs=1))
    rope = json.loads((tmp_path / "model" / "config.json").read_text())["rope_parameters"]
    assert report.rope_factor == rope["factor"] == 2.0
    assert rope["rope_type"] == "linear"
    again = finetune(
        tmp_path / "model", dialogues(8), tmp_path / "next", tuned(max_length=1000, epochs=1),
        scratch=tmp_path / "scratch", seed=3, threads=1,
    )  # fmt: skip
    assert again.rope_factor == 2.0


@pytest.mark.parametrize(
    ("changes", "budget"), [({"epochs": 0}, {}), ({"lora": {"rank": 2}}, {"max_train_tokens": 0})], ids=str
)
def test_zero_epochs_or_tokens_copy_the_model(
    tiny: Path, dialogues: Maker, tmp_path: Path, changes: dict[str, Any], budget: dict[str, int]
) -> None:
    report = run(tiny, dialogues(4), tmp_path, tuned(**changes), **budget)
    assert report.steps == report.real_tokens == 0
    assert report.counters.examples == 4
    copied = {f.name: f.read_bytes() for f in (tmp_path / "model").iterdir()}
    assert copied == {f.name: f.read_bytes() for f in tiny.iterdir()}


def test_counters_reach_the_report(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    silent = Example(id="s", messages=[Message(role="user", content="q"), Message(role="assistant", content="a")])
    report = run(tiny, [*dialogues(4), silent], tmp_path, tuned(epochs=1))
    assert (report.counters.examples, report.counters.dropped_empty) == (4, 1)


def test_bad_input_is_a_user_error_and_no_model_is_written(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    silent = Example(id="s", messages=[Message(role="user", content="q"), Message(role="assistant", content="a")])
    with refused_with("no examples remain to train on"):
        run(tiny, [silent], tmp_path, PARAMS)
    with refused_with("contains no model"):
        run(tmp_path / "nowhere", dialogues(2), tmp_path, PARAMS)
    with refused_with("bitsandbytes"):
        run(tiny, dialogues(2), tmp_path, tuned(lora={"quantize": "4bit"}))
    with refused_with(r"flash.?attn|FlashAttention|flash_attention"):
        run(tiny, dialogues(2), tmp_path, tuned(attention="flash_attention_2"))
    foreign = Message(role="assistant", content="a", token_ids=[100_000], weight=1.0)
    example = Example(id="f", messages=[Message(role="user", content="q"), foreign])
    with refused_with("token ids from 100000 to 100000, and the model's are 0 to 319"):
        run(tiny, [example], tmp_path, PARAMS)
    assert not (tmp_path / "model").exists()


def test_missing_and_misshapen_weights_are_refused(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    model = shutil.copytree(tiny, tmp_path / "model-without")
    state = load_file(model / "model.safetensors")
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"):
        del state[name]
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    with refused_with(r"model-without: the weights lack 2 of the tensors .*\(the first is model\.layers\.0\.self"):
        run(model, dialogues(2), tmp_path, PARAMS)
    state = {**load_file(tiny / "model.safetensors"), "model.norm.weight": torch.ones(3)}
    save_file(state, model / "model.safetensors", metadata={"format": "pt"})
    with refused_with(r"model-without: model\.norm\.weight has shape \[3\], but config\.json requires"):
        run(model, dialogues(2), tmp_path, PARAMS)


@pytest.mark.parametrize("launcher", [{}, {"kind": "fork", "processes": 2}], ids=["single", "fork"])
def test_training_that_diverges_ends_at_that_step_and_writes_no_model(
    tiny: Path, dialogues: Maker, tmp_path: Path, launcher: dict[str, Any]
) -> None:
    cfg = tuned(schedule="constant", warmup_ratio=0.0, launcher=launcher)
    cfg = cfg.model_copy(update={"lr": 1e37})  # beyond what params allow
    with refused_with(r"^step 2 of 5: the loss is \S+ and the gradient norm nan, .*lower train\.lr"):
        run(tiny, dialogues(20), tmp_path, cfg)
    assert not (tmp_path / "model").exists()


FULL = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free."


@pytest.mark.parametrize(
    ("saving", "remedy"), [(False, r" \(200\), or set train\.gradient_checkpointing: true"), (True, r" \(200\)")]
)
def test_exhausted_memory_of_a_gpu_names_the_params_that_need_it(
    tiny: Path, dialogues: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: bool, remedy: str
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(WeightedTrainer, "micro_loss", full)
    with refused_with(
        r"^train: the GPU's memory is exhausted \(2\.50 GiB more were needed\); lower train\.micro_batch_tokens "
        rf"\(400\) and train\.row_tokens{remedy}\.$"
    ):
        run(tiny, dialogues(4), tmp_path, tuned(gradient_checkpointing=saving))
    assert not (tmp_path / "model").exists()


def test_other_runtime_errors_of_training_keep_their_traceback(
    tiny: Path, dialogues: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(WeightedTrainer, "micro_loss", broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        run(tiny, dialogues(4), tmp_path, PARAMS)


def test_a_model_whose_weights_overflow_in_the_last_step_is_not_written(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    cfg = tuned(schedule="constant", warmup_ratio=0.0, epochs=1, batch_size=64).model_copy(update={"lr": 1e39})
    with refused_with(r"^after the last step, model\..* holds numbers that are not finite"):
        run(tiny, dialogues(20), tmp_path, cfg)
    assert not (tmp_path / "model").exists()


def test_warm_up_is_a_share_of_the_steps_or_a_number_of_steps(tiny: Path, tmp_path: Path) -> None:
    job = SftJob(
        model_dir=tiny, out_dir=tmp_path, checkpoints=tmp_path, params=tuned(warmup_ratio=0.1), seed=3, threads=1
    )
    assert join(job).get_warmup_steps(470) == 47
    job.params = tuned(warmup_ratio=0.1, warmup_steps=100)  # FireAct's
    assert join(job).get_warmup_steps(470) == 100


def test_the_curve_of_the_learning_rate_has_the_rate_of_each_step(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    rates: list[float] = []
    params = tuned(epochs=1, batch_size=5, schedule="linear", warmup_ratio=0)
    run(tiny, dialogues(20), tmp_path, params, progress=lambda *told: rates.append(told[3]["learning_rate"]))
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


@pytest.mark.parametrize("changes", [{"warmup_ratio": 0.04}, {"warmup_steps": 5}, {"schedule": "constant"}], ids=str)
def test_a_run_of_a_single_step_has_no_warm_up_and_changes_the_model(
    tiny: Path, dialogues: Maker, tmp_path: Path, changes: dict[str, Any]
) -> None:
    report = run(tiny, dialogues(8), tmp_path, tuned(epochs=1, **changes))
    before, after = load_file(tiny / "model.safetensors"), load_file(tmp_path / "model" / "model.safetensors")
    assert report.steps == 1
    # AdamW's first step moves a weight by at most the rate, and most weights by nearly as much.
    assert max(float((after[name] - before[name]).abs().max()) for name in before) == pytest.approx(1e-3, rel=0.01)
