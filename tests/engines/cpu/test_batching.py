"""``slots: auto`` and ``prefill_rows: auto``: small models have fixed shapes, large models smaller passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters
from selfimprove.models.loading import load_causal_lm
from tests.engines.asking import ask, make_engine, run
from tests.support.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[3]


def config(**settings: object) -> TransformersEngineConfig:
    return TransformersEngineConfig.model_validate({"engine": "transformers"} | settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def test_stored_parameters_counts_the_parameters_of_the_model(folder: Path) -> None:
    assert stored_parameters(folder) == sum(weight.numel() for weight in load_causal_lm(folder).parameters())


def test_the_default_profile_decodes_with_the_shapes_that_its_results_were_generated_with() -> None:
    params = YAML(typ="safe", pure=True).load(ROOT / "profiles/default.yaml")
    for method, name in (("rise", "student"), ("agent_r", "actor"), ("spin", "policy")):
        assert batch_sizes(config(**params[method]["engines"][name]), 1_000_000) == (128, 16), method
    for name in ("policy", "reflector"):
        assert batch_sizes(config(**params["reflect_rl"]["engines"][name]), 1_000_000) == (128, 32)


@pytest.mark.parametrize(
    ("parameters", "slots", "rows"),
    [(0, 128, 16), (10**7, 128, 16), (135 * 10**6, 32, 4), (15 * 10**8, 16, 2)],
)
def test_on_a_cpu_each_tenfold_increase_in_parameters_halves_the_rows(parameters: int, slots: int, rows: int) -> None:
    assert batch_sizes(config(), parameters) == (slots, rows)
    assert batch_sizes(config(prefill_block=64), parameters) == (slots, rows // 2)


def test_on_a_gpu_a_pass_reads_2048_tokens_of_at_most_half_as_many_prompts_as_slots() -> None:
    assert batch_sizes(config(device="cuda"), 135 * 10**6) == (128, 64)
    assert batch_sizes(config(device="cuda", prefill_block=128), 7 * 10**9) == (128, 16)
    assert batch_sizes(config(device="cuda", prefill_block=16, slots=64), 10**6) == (64, 32)


def test_explicit_numbers_are_kept_and_every_replica_has_a_slot() -> None:
    assert batch_sizes(config(slots=64, prefill_rows=3), 7 * 10**10) == (64, 3)
    assert batch_sizes(config(replicas=12), 7 * 10**10) == (12, 1)


def test_auto_gives_the_same_completions_as_the_explicit_numbers(folder: Path) -> None:
    requests = [ask(i, turns=i % 2) for i in range(6)]
    auto = run(make_engine(folder, slots="auto", prefill_rows="auto", prefill_block=32), requests)
    assert auto == run(make_engine(folder, slots=128, prefill_rows=16, prefill_block=32), requests)


@pytest.mark.parametrize("value", ["many", 0, 2.0, True])
def test_invalid_numbers_of_slots_are_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="expected a whole number from 1 to 8192, or auto"):
        config(slots=value)
