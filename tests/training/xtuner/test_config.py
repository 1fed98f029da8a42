"""The xtuner backend up to XTuner: its configuration, order of examples, model in 4.48's format, and refusals.

tests/backends/test_xtuner.py tests the training itself.
"""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.launch import finetune
from selfimprove.training.objective import example_scales
from selfimprove.training.packing import make_plan
from selfimprove.training.trainer import SftJob
from selfimprove.training.xtuner import backend as xtuner
from selfimprove.training.xtuner.config import START_FACTOR, XtunerRun, config_text, schedulers, zero2_text
from selfimprove.training.xtuner.launch import import_deepspeed
from selfimprove.training.xtuner.models import config_for_448, read_trained, tokenizer_config_for_448, write_start

# The stock full-parameter recipe, on eight GPUs with 16 conversations accumulated on each (docs/agent-r.md, A28).
PAPER: dict[str, Any] = {
    "backend": "xtuner", "device": "cuda", "dtype": "float16", "epochs": 3.0, "batch_size": 128, "max_length": 8192,
    "lr": 2e-5, "schedule": "cosine", "warmup_ratio": 0.03, "save_steps": 500, "save_total_limit": 2,
    "gradient_checkpointing": True, "launcher": {"kind": "deepspeed", "zero_stage": 2, "processes": 8},
}  # fmt: skip


def params(**changes: Any) -> FinetuneParams:
    return FinetuneParams.model_validate({"backend": "xtuner", **changes}, strict=False)


def run_of(cfg: FinetuneParams, *, iterations: int = 3200, accumulation: int = 16, folder: str = "/s/run") -> XtunerRun:
    return XtunerRun(
        folder=Path(folder), params=cfg, seed=7, threads=2, iterations=iterations, accumulation=accumulation
    )


def settings_of(text: str) -> dict[str, Any]:
    """The config's assignments: ``dict(...)`` as a dict, names as strings, literals as themselves."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            assert (node.func.id, node.args) == ("dict", []), "values are literals, never code"
            return {keyword.arg: value(keyword.value) for keyword in node.keywords}
        if isinstance(node, ast.List):
            return [value(item) for item in node.elts]
        return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ast.literal_eval(node)

    body = ast.parse(text).body
    return {ast.unparse(node.targets[0]): value(node.value) for node in body if isinstance(node, ast.Assign)}


def test_the_command_uses_no_option_that_torch_2_5_lacks() -> None:
    """The GPU environment's torch is older than ours, and its torchrun rejects unknown options."""
    command = xtuner._command(Path("/x/python"), run_of(FinetuneParams.model_validate(PAPER, strict=False)))
    assert command[:4] == ["/x/python", "-m", "selfimprove.training.torchrun", "--nproc-per-node=8"]
    assert command[-3:] == ["-m", xtuner.LAUNCHER, "/s/run/run.json"]
    assert not any("shutdown-timeout" in part for part in command)


def test_the_config_contains_the_paper_s_recipe() -> None:
    config = settings_of(config_text(run_of(FinetuneParams.model_validate(PAPER, strict=False))))
    assert config["optim_wrapper"] == {
        "type": "AmpOptimWrapper",
        "dtype": "float16",
        "loss_scale": "dynamic",
        "accumulative_counts": 16,
        "optimizer": {"type": "AdamW", "lr": 2e-5, "betas": (0.9, 0.999), "weight_decay": 0.0},
        "clip_grad": {"max_norm": 1.0, "error_if_nonfinite": False},
    }
    assert config["param_scheduler"] == [
        {"type": "LinearLR", "start_factor": START_FACTOR, "begin": 0, "end": 96, "by_epoch": False},
        {"type": "CosineAnnealingLR", "eta_min": 0.0, "begin": 96, "end": 3200, "by_epoch": False},
    ]
    assert config["train_cfg"] == {"type": "TrainLoop", "max_iters": 3200}
    loader = config["train_dataloader"]
    assert (loader["batch_size"], loader["sampler"]["shuffle"]) == (1, False)
    assert config["default_hooks"]["checkpoint"] is None
    told = [(hook["every"], hook["keep"], hook["overflows"]) for hook in config["custom_hooks"]]
    assert told == [(500, 2, True)], "our own hook writes the checkpoints"
    assert config["model"]["use_activation_checkpointing"] is True
    assert config["model"]["lora"] is None
    assert config["env_cfg"]["dist_cfg"] == {"backend": "nccl"}
    assert config["randomness"] == {"seed": 7, "deterministic": False}


def test_the_zero_2_config_has_the_precision_of_the_params() -> None:
    zero = json.loads(zero2_text(FinetuneParams.model_validate(PAPER, strict=False)))
    assert zero["zero_optimization"]["stage"] == 2
    assert zero["zero_optimization"]["overlap_comm"] is True
    assert (zero["fp16"]["enabled"], zero["bf16"]["enabled"]) == (True, False)
    assert "train_batch_size" not in zero, "XTuner fills in the parts, not the product"
    assert {zero[key] for key in zero if key.startswith(("train_micro", "gradient"))} == {"auto"}
    brain = json.loads(zero2_text(params(**{**PAPER, "dtype": "bfloat16"})))
    assert (brain["fp16"]["enabled"], brain["bf16"]["enabled"]) == (False, True)


def test_precision_adapters_and_paths_are_written_as_literals() -> None:
    cfg = params(device="cuda", dtype="bfloat16", lora={"rank": 4, "alpha": 8, "targets": ["q_proj"]})
    config = settings_of(config_text(run_of(cfg, folder='/s/it\'s "here"\\x')))
    wrapper = config["optim_wrapper"]
    assert (wrapper["type"], wrapper["dtype"], wrapper["loss_scale"]) == ("AmpOptimWrapper", "bfloat16", 1.0)
    lora = config["model"]["lora"]
    assert (lora["r"], lora["lora_alpha"], lora["target_modules"]) == (4, 8, ["q_proj"])
    assert config["model"]["llm"]["pretrained_model_name_or_path"] == '/s/it\'s "here"\\x/start'
    plain = settings_of(config_text(run_of(params())))
    assert (plain["optim_wrapper"]["type"], plain["env_cfg"]["dist_cfg"]["backend"]) == ("OptimWrapper", "gloo")


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_a_warm_up_too_short_for_mmengine_is_left_out(schedule: str) -> None:
    assert [rate["begin"] for rate in schedulers(params(schedule=schedule, warmup_ratio=0.03), 40)] in ([0], [])
    stages = schedulers(params(schedule=schedule, warmup_ratio=0.1), 40)
    assert (stages[0]["begin"], stages[0]["end"]) == (0, 4)
    assert all(rate["begin"] == 4 and rate["end"] >= 40 for rate in stages[1:])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"launcher": {"kind": "torchrun", "processes": 2}}, "launcher.kind: torchrun"),
        ({"launcher": {"kind": "fork", "processes": 2}}, "launcher.kind: fork"),
        ({"launcher": {"kind": "deepspeed", "zero_stage": 3}}, "launcher.zero_stage: 3"),
        ({"launcher": {"kind": "deepspeed", "zero_stage": 2, "processes": 2}}, "launcher.processes: 2 on device: cpu"),
        ({"launcher": {"kind": "deepspeed", "zero_stage": 2, "offload": True}}, "launcher.offload"),
        (
            {
                "device": "cuda",
                "launcher": {"kind": "deepspeed", "zero_stage": 2, "nodes": 2, "rendezvous": "n0:1"},
            },
            "launcher.nodes: 2",
        ),
        ({"dtype": "bfloat16"}, "dtype: bfloat16 on device: cpu"),
        ({"device": "cuda", "tf32": True}, "tf32"),
        ({"device": "cuda", "attention": "flash_attention_2"}, "attention: flash_attention_2"),
        ({"device": "cuda", "lora": {"quantize": "4bit"}}, "lora.quantize"),
        ({"validation": 0.1}, "validation"),
        ({"warmup_steps": 100}, "warmup_steps"),
    ],
)
def test_settings_that_the_backend_does_not_support_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match="or use backend trainer") as refusal:
        params(**changes)
    assert f"backend 'xtuner' does not support {named}" in str(refusal.value)
    params(**changes, backend="trainer")


def test_float16_is_refused_with_the_trainer_backend() -> None:
    with pytest.raises(ValidationError, match="'float16' works only with backend xtuner"):
        params(backend="trainer", device="cuda", dtype="float16")


def test_without_its_environment_the_error_names_the_make_target_that_installs_it(
    tiny: Path, dialogues: Callable[..., list[Example]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xtuner, "ENVIRONMENT", tmp_path / "venv")
    started = tmp_path / "venv" / "bin" / "python"
    for half_made in (False, True):
        if half_made:  # an interrupted installation: no stamp
            started.parent.mkdir(parents=True)
            started.touch()
        with pytest.raises(UserError, match="make env-xtuner"):
            finetune(tiny, dialogues(4), tmp_path / "out", params(), scratch=tmp_path / "s", seed=1, threads=1)
        assert not (tmp_path / "out").exists()


@st.composite
def weighted_examples(draw: st.DrawFn) -> list[EncodedExample]:
    examples = []
    for _ in range(draw(st.integers(1, 12))):
        learnt = draw(st.lists(st.booleans(), min_size=1, max_size=9))
        learnt[-1] = True
        weight = draw(st.sampled_from([1.0, 0.25, 12.5]))
        examples.append(EncodedExample(list(range(len(learnt) + 1)), [0.0, *(weight * on for on in learnt)]))
    return examples


@settings(max_examples=60)
@given(
    weighted_examples(),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from(["example_mean", "token_mean"]),
    st.sampled_from(["none", "batch"]),
)
def test_the_mean_over_micro_batches_equals_our_objective(
    examples: list[EncodedExample], batch_size: int, processes: int, reduction: Any, normalization: Any
) -> None:
    launcher = {"kind": "deepspeed", "zero_stage": 2, "processes": processes}
    cfg = params(device="cuda", batch_size=batch_size, reduction=reduction, launcher=launcher)
    plan = make_plan(
        [len(example.ids) for example in examples],
        batch_size=batch_size, row_tokens=1, micro_batch_tokens=1, seed=1, epochs=2.0,
    )  # fmt: skip
    job = SftJob(
        model_dir=Path(), out_dir=Path(), checkpoints=Path(), params=cfg, seed=1, threads=1,
        weight_normalization=normalization,
    )  # fmt: skip
    layout = xtuner.lay_out(plan, examples, job)
    width = layout.accumulation * processes
    assert len(layout.order) == len(layout.divisors) == width * len(plan.steps)
    losses = [[0.5 + 0.1 * token for token in example.ids] for example in examples]  # arbitrary values
    for number, step in enumerate(plan.steps):
        micros = range(number * width, (number + 1) * width)
        assert sorted(layout.order[m] for m in micros if layout.order[m] >= 0) == sorted(step.examples)
        mean = sum(
            sum(loss for loss, w in zip(losses[i], examples[i].token_weights, strict=True) if w) / layout.divisors[m]
            for m in micros
            if (i := layout.order[m]) >= 0
        ) / width  # fmt: skip
        batch = [examples[index] for index in step.examples]
        scales = example_scales(batch, reduction, normalization)
        objective = sum(
            scale * weight * loss
            for index, scale in zip(step.examples, scales, strict=True)
            for weight, loss in zip(examples[index].token_weights, losses[index], strict=True)
        )
        assert math.isclose(mean, objective, rel_tol=1e-9)


def test_messages_with_different_weights_are_refused() -> None:
    mixed = [EncodedExample([1, 2, 3], [0.0, 1.0, 0.2])]
    job = SftJob(model_dir=Path(), out_dir=Path(), checkpoints=Path(), params=params(), seed=1, threads=1)
    plan = make_plan([3], batch_size=1, row_tokens=1, micro_batch_tokens=1, seed=1)
    with pytest.raises(UserError, match=r"different weights \(0.2, 1.0\).*backend: trainer"):
        xtuner.lay_out(plan, mixed, job)


def test_model_and_tokenizer_configs_are_converted_for_transformers_448() -> None:
    new = {
        "dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    }
    assert config_for_448(new) == {
        "torch_dtype": "float32", "rope_theta": 500000.0, "partial_rotary_factor": 0.5, "rope_scaling": None,
    }  # fmt: skip
    stretched = config_for_448({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}})
    assert stretched == {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    old = {"torch_dtype": "float16", "rope_theta": 1e6, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert config_for_448(old) == old, "a 4.x checkpoint stays as it is"
    tokenizer = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "is_local": True, "eos_token": "</s>"}
    assert tokenizer_config_for_448({**tokenizer, "extra_special_tokens": ["<a>"]}, "{{ x }}") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "additional_special_tokens": ["<a>"],
        "chat_template": "{{ x }}",
    }


def test_the_start_folder_links_the_weights_and_does_not_change_the_model(tiny: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in tiny.iterdir()}
    write_start(tiny, tmp_path / "start", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    assert {file.name for file in (tmp_path / "start").iterdir()} == set(before)
    assert (tmp_path / "start" / "model.safetensors").resolve() == (tiny / "model.safetensors").resolve()
    config = json.loads((tmp_path / "start" / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert "rope_parameters" not in config
    assert {file.name: file.read_bytes() for file in tiny.iterdir()} == before
    layered = {**json.loads(before["config.json"]), "rope_parameters": {"full": {"rope_theta": 1.0}}}
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(layered))
    with pytest.raises(UserError, match="differ between layers"):
        write_start(tmp_path / "odd", tmp_path / "start", None)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("a tensor is missing", r"lack 1 of .*model\.norm\.weight"), ("other shape", r"norm\.weight has shape \[33\]")],
    ids=["missing", "other-shape"],
)
def test_trained_weights_that_do_not_match_the_model_are_refused(
    fault: str, said: str, tiny: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    from selfimprove.training.loading import load_config

    config, _ = load_config(tiny, params())
    weights = load_file(tiny / "model.safetensors")
    del weights["model.norm.weight"]
    if fault == "other shape":
        weights["model.norm.weight"] = torch.ones(33)
    (tmp_path / "trained").mkdir()
    save_file(weights, tmp_path / "trained" / "model.safetensors")

    with pytest.raises(UserError, match=rf"the weights that XTuner trained do not match .*{said}"):
        read_trained(tmp_path / "trained", tiny, config, params(), tmp_path / "out")


LIGHT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if path is None and name[0] != "_" and name not in {*sys.stdlib_module_names, *sys.argv[1:]}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import selfimprove.training.xtuner.launch
"""


def test_the_launcher_imports_no_package_that_xtuner_s_environment_lacks() -> None:
    lock = Path("requirements/xtuner-cpu.lock").read_text(encoding="utf-8")
    there = re.findall(r"(?m)^([^\s=]+)==", lock)
    names = [name.replace("-", "_") for name in there] + ["selfimprove"]
    done = subprocess.run([sys.executable, "-c", LIGHT, *names], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


def test_deepspeed_is_imported_without_a_look_for_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0.16, which XTuner pins, looks for it if torch finds a GPU, and fails if it is not there."""
    (tmp_path / "deepspeed.py").write_text("import torch\nassert not torch.cuda.is_available(), 'no nvcc'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "deepspeed", sys)  # restored afterwards, imported or not
    del sys.modules["deepspeed"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    import_deepspeed()
    assert Path(str(sys.modules["deepspeed"].__file__)).parent == tmp_path
    assert torch.cuda.is_available()
