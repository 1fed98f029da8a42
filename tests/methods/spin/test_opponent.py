"""The opponent is the model that training starts from; it scores every pair once (docs/spin.md, S36)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Pair
from selfimprove.methods.spin import opponent
from selfimprove.methods.spin.encode import EncodedPair, encode_pairs
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.models.merging import full_weights
from selfimprove.training.job import RunJob
from selfimprove.training.loading import load_base, load_model
from selfimprove.training.report import PairReport
from tests.support.tiny import make_tiny_model

Maker = Callable[..., list[Pair]]
LORA = {"rank": 4, "alpha": 8, "dropout": 0.2, "targets": ["q_proj", "v_proj"]}


def params(**changes: Any) -> PairParams:
    told = {"batch_size": 4, "lr": 1e-3, "max_length": 300, "logging_steps": 1, "epochs": 1, **changes}
    return PairParams.model_validate(told, strict=False)


def run(model: Path, pairs: list[Pair], folder: Path, cfg: PairParams, against: Path | None = None) -> PairReport:
    scratch = folder.parent / "scratch"
    return finetune_pairs(model, against or model, pairs, folder, cfg, scratch=scratch, seed=3, threads=1)


def job_for(model: Path, cfg: PairParams) -> RunJob:
    return RunJob(
        model_dir=model, out_dir=model, checkpoints=model, params=cfg, seed=3, threads=1
    )  # fmt: skip


def encoded(model: Path, pairs: list[Pair]) -> list[EncodedPair]:
    return encode_pairs(pairs, ChatFormat.load(model), params())[0]


def score_pair(model: torch.nn.Module, pair: EncodedPair, job: RunJob) -> opponent.Score:
    return opponent.score_pairs(model, [pair], opponent.ALONE, job)[0]


def test_an_opponent_that_is_not_the_initial_model_is_refused_unless_allowed(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", hidden=32, seed=1)
    with pytest.raises(UserError, match=r"the opponent .*other is not the initial model .*tiny"):
        run(tiny, duels(4), tmp_path / "out", params(), other)
    copy = shutil.copytree(tiny, tmp_path / "copy")  # the same weights elsewhere are the same model
    assert run(tiny, duels(4), tmp_path / "same", params(), copy).first["loss"] == pytest.approx(0.693147, abs=1e-5)
    allowed = run(tiny, duels(4), tmp_path / "allowed", params(other_opponent=True), other)
    pairs = encoded(tiny, duels(4))
    against, own = (
        [score_pair(load_base(model, params())[0].eval(), pair, job_for(model, params())) for pair in pairs]
        for model in (other, tiny)
    )
    expected = sum(0.1 * (mine[0] - theirs[0]) for mine, theirs in zip(own, against, strict=True)) / 4
    assert allowed.first["rewards/real"] == pytest.approx(expected, rel=1e-4)


def test_an_adapter_that_does_not_name_its_base_is_refused(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    model = shutil.copytree(tiny, tmp_path / "model")
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"contains an adapter without adapter_base.json.*base.<method>.model"):
        run(model, duels(4), tmp_path / "out", params())


@pytest.mark.slow
def test_without_its_new_adapter_the_next_iterations_model_is_the_previous_one_merged(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    pairs = duels(12)
    cfg = params(lora=LORA, lr=1e-2, epochs=3)
    run(tiny, pairs, tmp_path / "iter0", cfg)
    merged = full_weights(tmp_path / "iter0")
    assert not list(merged.glob("adapter*"))
    model, _ = load_model(merged, cfg, seed=3, dropout=False)
    plain, _ = load_base(merged, params())
    job = job_for(merged, cfg)
    one = encoded(tiny, pairs)[0]
    with model.disable_adapter():
        assert score_pair(model, one, job) == score_pair(plain, one, job)
    assert score_pair(plain, one, job) != score_pair(load_base(tiny, cfg)[0], one, job)
    again = run(tmp_path / "iter0", pairs, tmp_path / "iter1", cfg)
    assert again.first["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert again.first["drift"] < 1e-5
    assert again.curve[-1]["rewards/margins"] > 0


def test_attention_dropout_is_off_for_policy_and_opponent(duels: Maker, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", hidden=32)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    report = run(model, duels(8), tmp_path / "out", params(epochs=1))
    assert report.first["drift"] < 1e-5
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["attention_dropout"] == 0.5  # the model keeps its own setting


def test_lora_dropout_has_no_effect(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    pairs, curves = duels(8), []
    for share in (0.0, 0.5):
        cfg = params(lora={**LORA, "dropout": share}, lr=1e-2, epochs=3)
        curves.append(run(tiny, pairs, tmp_path / str(share), cfg).curve)
    assert curves[0] == curves[1]


def test_a_pair_is_rescored_only_if_the_pair_weights_tokenizer_or_precision_change(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    pairs = duels(10)
    assert run(tiny, pairs, tmp_path / "a", params()).timing.opponent_scored == 10
    assert run(tiny, pairs, tmp_path / "b", params(lr=2e-3, beta=0.5)).timing.opponent_scored == 0
    assert run(tiny, pairs[:5] + duels(12)[8:], tmp_path / "c", params()).timing.opponent_scored == 2
    reworded = pairs[3].model_copy(update={"generated": pairs[4].generated})
    assert run(tiny, [*pairs[:3], reworded], tmp_path / "d", params()).timing.opponent_scored == 1
    assert run(tmp_path / "a", pairs, tmp_path / "e", params()).timing.opponent_scored == 10  # other weights
    tokenizer = shutil.copytree(tiny, tmp_path / "tokenizer")
    text = (tokenizer / "tokenizer.json").read_text()
    (tokenizer / "tokenizer.json").write_text(text + "\n")
    assert run(tokenizer, pairs, tmp_path / "f", params()).timing.opponent_scored == 10
    assert run(tiny, pairs, tmp_path / "g", params(dtype="bfloat16")).timing.opponent_scored == 10


def test_a_score_is_the_pairs_log_likelihood_whatever_the_order_or_number_of_processes(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    pairs = encoded(tiny, duels(9))
    job = job_for(tiny, params())
    assert opponent.score(job, tiny, tmp_path / "alone", pairs) == 9
    alone = opponent.read_scores(tmp_path / "alone", pairs)
    shares = [opponent.score(job, tiny, tmp_path / "three", pairs[::-1], rank=rank, world=3) for rank in range(3)]
    assert shares == [3, 3, 3]
    assert opponent.read_scores(tmp_path / "three", pairs, rank=1) == alone
    model, _ = load_base(tiny, params())
    for pair, (real, generated) in zip(pairs, alone, strict=True):
        for side, score in ((pair.real, real), (pair.generated, generated)):
            ids = torch.tensor([side.ids])
            with torch.no_grad():
                values = model(ids).logits[0, :-1].log_softmax(-1)[range(len(side.ids) - 1), side.ids[1:]]
            learnt = torch.tensor([weight > 0 for weight in side.token_weights[1:]])
            assert score == pytest.approx(float(values[learnt].sum()), rel=1e-5)


def test_the_pair_of_a_torn_journal_line_is_scored_again(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    pairs, job = encoded(tiny, duels(6)), job_for(tiny, params())
    opponent.score(job, tiny, tmp_path, pairs)
    whole = (tmp_path / "0.jsonl").read_bytes()
    (tmp_path / "0.jsonl").write_bytes(whole[:-9])
    assert opponent.score(job, tiny, tmp_path, pairs) == 1
    assert (tmp_path / "0.jsonl").read_bytes() == whole


def test_a_request_to_stop_ends_scoring_and_the_next_run_scores_only_the_rest(
    tiny: Path, duels: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, job, asked = encoded(tiny, duels(6)), job_for(tiny, params()), iter([False, False, True])
    monkeypatch.setattr(opponent, "asked", lambda: next(asked, False))
    with pytest.raises(KeyboardInterrupt):
        opponent.score(job, tiny, tmp_path, pairs)
    assert opponent.score(job, tiny, tmp_path, pairs) == 4


@pytest.mark.parametrize("attention", ["sdpa", "segments"])
def test_pairs_in_shared_micro_batches_get_the_same_scores_as_alone(
    tiny: Path, duels: Maker, attention: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pairs = encoded(tiny, duels(20))
    job = job_for(tiny, params(attention=attention, row_tokens=200, micro_batch_tokens=600))
    opponent.score(job, tiny, tmp_path / "alone", pairs)
    monkeypatch.setattr(opponent, "_packed", lambda params: True)  # as on a GPU, which these tests may not have
    widths = []
    score_pairs = opponent.score_pairs

    def counted(model: torch.nn.Module, batch: list[EncodedPair], *rest: Any) -> list[opponent.Score]:
        widths.append(len(batch))
        return score_pairs(model, batch, *rest)

    monkeypatch.setattr(opponent, "score_pairs", counted)
    assert opponent.score(job, tiny, tmp_path / "together", pairs) == sum(widths) == 20
    assert len(widths) <= 10
    alone, together = (opponent.read_scores(tmp_path / name, pairs) for name in ("alone", "together"))
    assert torch.allclose(torch.tensor(together), torch.tensor(alone), atol=1e-3, rtol=0)


def test_scores_of_another_precision_or_computation_are_not_reused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def folder(**changes: Any) -> Path:
        return opponent.scores_folder(job_for(tiny, params(**changes)), "weights", tmp_path)

    zero = {"kind": "deepspeed", "processes": 1}  # computes in bfloat16 throughout; otherwise autocast chooses
    names = {folder(), folder(dtype="bfloat16"), folder(dtype="bfloat16", launcher=zero)}
    names |= {folder(dtype="bfloat16", device="cuda"), folder(dtype="bfloat16", device="cuda", tf32=True)}
    assert len(names) == 5
    assert folder(lr=1.0) in names
    monkeypatch.setattr(opponent, "_packed", lambda params: True)
    assert folder() not in names


def test_scores_of_another_max_length_are_not_reused_because_it_may_scale_rope(
    tiny: Path, duels: Maker, tmp_path: Path
) -> None:
    pairs, found = encoded(tiny, duels(2)), []
    for max_length, missing in ((300, 2), (300, 0), (100_000, 2)):  # the last exceeds the model's positions
        job = job_for(tiny, params(max_length=max_length))
        folder = opponent.scores_folder(job, "weights", tmp_path)
        assert opponent.score(job, tiny, folder, pairs) == missing
        found.append(opponent.read_scores(folder, pairs))
    assert found[0] == found[1] != found[2]


def test_in_bfloat16_the_opponent_computes_like_the_trained_model(tiny: Path, duels: Maker, tmp_path: Path) -> None:
    model, pair = load_base(tiny, params())[0].eval(), encoded(tiny, duels(1))[0]
    fine, coarse = (score_pair(model, pair, job_for(tiny, params(dtype=dtype))) for dtype in ("float32", "bfloat16"))
    assert coarse != fine
    for changes in ({}, {"lora": LORA}):
        name = "adapters" if changes else "full"
        report = run(tiny, duels(8), tmp_path / name, params(dtype="bfloat16", **changes))
        assert report.timing.opponent_scored == 8
        assert report.first["drift"] < 5e-3


def test_scores_of_another_attention_quantisation_or_number_of_threads_are_not_reused(
    tiny: Path, tmp_path: Path
) -> None:
    plain, adapters = params(), params(lora=LORA)
    assert adapters.lora is not None
    quantised = adapters.model_copy(update={"lora": adapters.lora.model_copy(update={"quantize": "8bit"})})
    jobs = [job_for(tiny, cfg) for cfg in (plain, params(attention="segments"), adapters, quantised)]
    jobs.append(jobs[0].model_copy(update={"threads": 2}))
    folders = [opponent.scores_folder(job, "weights", tmp_path) for job in jobs]
    assert len({*folders[:2], *folders[3:]}) == 4
    assert folders[2] != folders[3]
    other = shutil.copytree(tiny, tmp_path / "other")  # the same weights, used in another way
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.1}))
    assert opponent.scores_folder(job_for(other, plain), "weights", tmp_path) not in folders
