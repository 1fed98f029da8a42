"""DeepSpeed's configuration from our params, and restrictions on unpickling its checkpoints."""

import os
import pickle
from typing import Any

from selfimprove.training.config import FinetuneParams


def zero_config(params: FinetuneParams) -> dict[str, Any]:
    """ZeRO-2 or ZeRO-3 configuration for HF Trainer, which replaces "auto" by its own values."""
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
    """Restrict unpickling of DeepSpeed's checkpoints to tensors, plain values and four of DeepSpeed's own classes.

    Before Python 3.11.4 an enumeration member is pickled as a call of ``getattr``; such a call may only name a ZeRO
    stage.

    DeepSpeed, and through it XTuner, allows torch to load arbitrary pickles (``weights_only=False``). The environment
    variable overrides this for every file that this process loads from now on.
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

    # Pickles refer to it as getattr. It is renamed, since torch 2.5 (XTuner's) accepts no (function, name) pairs.
    stage.__module__, stage.__name__, stage.__qualname__ = "builtins", "getattr", "getattr"
    torch.serialization.add_safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address, stage])
