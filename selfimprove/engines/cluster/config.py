"""Params of a run's cluster: heavy work runs in processes of this machine, or on several machines."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section

VARIABLE = "CLUSTER"
KINDS = ("none", "ray", "slurm")

COMPUTING = (
    "ATEN_", "CUBLAS_", "DNNL_", "DS_", "GLOO_", "MKL_", "NCCL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTORCH_",
    "TORCH_",
)  # fmt: skip
SENT = (*COMPUTING, "HF_", "LOCAL_KERNELS", "TOKENIZERS_", "TRANSFORMERS_", "VLLM_")
"""Prefixes of the environment variables that a stage passes to its processes on Ray's nodes. Ray's own processes have
the environment of whoever started their node."""


def sent(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are passed to other nodes."""
    return {name: value for name, value in environment.items() if name.startswith(SENT)}


class ClusterParams(Section):
    """The machines that a run uses besides this one. They do not affect results or any stage's identity.

    ``CLUSTER=ray``, ``CLUSTER=slurm`` or ``CLUSTER=none`` in the environment overrides ``kind``.
    """

    kind: Literal["none", "ray", "slurm"] = Field(
        default="none",
        description="ray: engine replicas, heavy environments and multi-node training run on a Ray cluster; slurm: "
        "srun starts multi-node training, everything else runs locally (docs/scale.md)",
    )
    address: str = Field(
        default="auto",
        min_length=1,
        description="host:port of the Ray head node; auto: RAY_ADDRESS, or the cluster that this machine belongs to; "
        "local: a new single-machine cluster for each stage",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="maximum number of replicas of each engine; null: as many as fit on the nodes",
    )

    max_restarts: int = Field(
        default=1, ge=0, le=1000, description="restarts of a multi-node training run after a node is lost"
    )

    def asked(self) -> ClusterParams:
        """These params, with ``kind`` overridden by the environment variable, if it is set.

        Raises:
            UserError: the variable has an unknown value.
        """
        kind = os.environ.get(VARIABLE)
        if not kind:
            return self
        if kind not in KINDS:
            raise UserError(f"{VARIABLE}={kind} is unknown; choose one of {', '.join(KINDS)}.")
        return self.model_copy(update={"kind": kind})


NO_CLUSTER = ClusterParams()

_in_use = NO_CLUSTER


def use(cluster: ClusterParams) -> None:
    """Set the cluster on which this process's environments may start their processes."""
    global _in_use
    _in_use = cluster


def in_use() -> ClusterParams:
    """The cluster of this process's stage; global because environments are created in many places."""
    return _in_use
