"""DeepSpeed's configuration from our params, and what its checkpoints may hold."""

import os
import pickle
from typing import Any

from selfimprove.training.config import FinetuneParams


def zero_config(params: FinetuneParams) -> dict[str, Any]:
    """ZeRO-2 or ZeRO-3, as HF Trainer takes it ("auto": Trainer fills in the value it runs with)."""
    launcher = params.launcher
    zero: dict[str, Any] = {"stage": launcher.zero_stage, "overlap_comm": params.device == "cuda"}
    if launcher.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    if launcher.zero_stage == 2:
        zero.update(contiguous_gradients=True, reduce_scatter=True)
    else:
        zero.update(
            stage3_gather_16bit_weights_on_model_save=True,
            reduce_bucket_size="auto",
            stage3_prefetch_bucket_size="auto",
            stage3_param_persistence_threshold="auto",
        )
        if launcher.offload:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": params.dtype == "bfloat16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def read_tensors_only() -> None:
    """Let DeepSpeed's checkpoints hold tensors, plain values and four classes of its own; no other code is unpickled.

    Before Python 3.11.4 a member of an enumeration is pickled as a call of ``getattr``; such a call may name a ZeRO
    stage and nothing else.

    DeepSpeed, and XTuner after it, ask torch for any pickle at all (``weights_only=False``); the environment variable
    overrules them for every file that this process reads from here on.
    """
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

    def stage(kind: Any, name: str) -> Any:
        if kind is not ZeroStageEnum or name not in ZeroStageEnum.__members__:
            raise pickle.UnpicklingError(f"a checkpoint asks for {name} of {kind}, which is not a ZeRO stage")
        return ZeroStageEnum[name]

    # Pickles call it getattr. Its own name says so, since torch 2.5, XTuner's, takes no pairs of function and name.
    stage.__module__, stage.__name__, stage.__qualname__ = "builtins", "getattr", "getattr"
    torch.serialization.add_safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, stage])
