"""Runs XTuner's own ``train`` in XTuner's environment; started as ``python -m selfimprove.training.xtuner.launch``.

It runs in this process rather than through the ``xtuner`` command, which always exits with 0. Without a GPU, two gaps
are bridged: XTuner calls ``torch.cpu.is_bf16_supported``, which torch does not have, and imports torchvision for image
data sets, of which there is no build for CPUs. With a GPU, importing DeepSpeed would fail without a CUDA toolkit.
"""

import enum
import importlib.util
import os
import runpy
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.publish import aside
from selfimprove.models.adapters import WEIGHTS as ADAPTER
from selfimprove.training.checkpoints import newest_whole
from selfimprove.training.processes import compile_apart, free_port, leave_with_launcher
from selfimprove.training.stopping import INTERRUPTED, signals_ask
from selfimprove.training.xtuner.config import XtunerRun
from selfimprove.training.xtuner.models import WEIGHTS
from selfimprove.training.zero import read_tensors_only


def main(run_file: Path) -> int:
    """Start or resume training, and write the trained weights to ``run.trained``. Returns the exit code."""
    leave_with_launcher()
    compile_apart(run_file.parent)
    run = XtunerRun.model_validate_json(run_file.read_text(encoding="utf-8"))
    try:
        with signals_ask():
            train(run)
        if os.environ.get("RANK", "0") == "0":
            export(run)
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def train(run: XtunerRun) -> None:
    """Run XTuner's ``train`` from the newest complete checkpoint."""
    import torch

    if run.params.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "train.device: cuda, but XTuner's environment finds no GPU; set cpu, or build it for GPUs with "
            "'make env-xtuner XTUNER=gpu'."
        )
    torch.set_num_threads(run.threads)
    bridge()
    import_deepspeed()
    arguments = [str(run.folder / "config.py"), "--work-dir", str(run.folder)]
    checkpoint = newest_whole(run.folder)
    single_file = run.params.launcher.kind == "single"
    if checkpoint is not None:
        arguments += ["--resume", str(checkpoint / "state.pth" if single_file else checkpoint)]
    if run.params.launcher.kind == "deepspeed":
        read_tensors_only()
        arguments += ["--deepspeed", str(run.folder / "zero.json")]
        if run.params.launcher.processes > 1:
            arguments += ["--launcher", "pytorch"]
        else:
            _meet_alone()
    sys.argv = ["train", *arguments]
    runpy.run_module("xtuner.tools.train", run_name="__main__", alter_sys=True)


def export(run: XtunerRun) -> None:
    """Write the last checkpoint's weights as float32 safetensors, with transformers' names.

    XTuner's ``pth_to_hf`` is not used: it reads ZeRO checkpoints in float16, whatever dtype is requested.

    Raises:
        UserError: training ended before its last checkpoint, or with weights that are not finite.
    """
    import torch
    from safetensors.torch import save_file

    checkpoint = newest_whole(run.folder)
    if checkpoint is None or checkpoint.name != f"checkpoint-{run.iterations}":
        raise UserError(
            f"XTuner ended without writing its last checkpoint, checkpoint-{run.iterations} in {run.folder}; run again."
        )
    if run.params.launcher.kind == "deepspeed":
        from xtuner.utils.zero_to_any_dtype import get_state_dict_from_zero_checkpoint

        state: dict[str, Any] = get_state_dict_from_zero_checkpoint(
            str(checkpoint.parent), checkpoint.name, dtype=torch.float32
        )
    else:
        state = torch.load(checkpoint / "state.pth", map_location="cpu", weights_only=True)["state_dict"]
    tensors: dict[str, torch.Tensor] = {}
    places = set()
    for name, tensor in state.items():
        if tensor.data_ptr() not in places:  # a tied output layer is the embedding and is written once
            places.add(tensor.data_ptr())
            if not torch.isfinite(tensor).all():
                raise UserError(
                    f"after the last step, {name} holds numbers that are not finite, so training has diverged; lower "
                    "train.lr."
                )
            tensors[name.removeprefix("llm.").replace(".default.weight", ".weight")] = tensor.float().contiguous()
    run.trained.mkdir(exist_ok=True)
    file = run.trained / (WEIGHTS if run.params.lora is None else ADAPTER)
    with aside(file) as part:
        save_file(tensors, part, metadata={"format": "pt"})


def import_deepspeed() -> None:
    """Import DeepSpeed, as XTuner always does, on a machine with a GPU but without ``nvcc``.

    If torch finds a GPU, version 0.16 asks ``nvcc`` which of its kernels it could compile, and fails if there is none.
    None of them is used here.
    """
    import torch

    available = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        import deepspeed  # noqa: F401
    finally:
        torch.cuda.is_available = available


def bridge() -> None:
    """Provide stubs for what XTuner lacks on a machine without a GPU; existing functions are not replaced."""
    import torch

    if not hasattr(torch.cpu, "is_bf16_supported"):
        torch.cpu.is_bf16_supported = lambda: True  # type: ignore[attr-defined]
    if importlib.util.find_spec("torchvision") is not None:
        return
    from transformers.utils.import_utils import is_torchvision_available

    is_torchvision_available()  # transformers caches that it is missing
    modes = enum.Enum("modes", ["NEAREST", "BILINEAR", "BICUBIC"])
    functional = _module("torchvision.transforms.functional", InterpolationMode=modes)
    transforms = _module("torchvision.transforms", functional=functional, InterpolationMode=modes)
    _module("torchvision", transforms=transforms, __version__="0+none")


def _module(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(contents, __path__=[], __spec__=ModuleSpec(name, None, is_package=True))
    sys.modules[name] = module
    return module


def _meet_alone() -> None:
    """Set DeepSpeed's environment variables for a group of one process, without its shared-memory helper.

    On a CPU it would otherwise compile the helper first, for a minute or two.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", **place})


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
