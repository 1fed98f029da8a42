"""Where a run's heavy work is done: in processes of this machine, or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section

VARIABLE = "CLUSTER"
KINDS = ("none", "ray", "slurm")

COMPUTING = ("ATEN_", "DNNL_", "DS_", "MKL_", "NCCL_", "NPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "TORCH_")
SENT = (*COMPUTING, "HF_", "LOCAL_KERNELS", "TOKENIZERS_", "TRANSFORMERS_", "VLLM_")
"""What the names of variables begin with that a stage's processes on Ray's nodes get from it: Ray's own processes have
the environment of whoever started their node."""


def sent(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that go to other nodes."""
    return {name: value for name, value in environment.items() if name.startswith(SENT)}


class ClusterParams(Section):
    """The machines that a run uses beside this one. It changes no result, and so is no part of any stage's identity.

    ``CLUSTER=ray``, ``CLUSTER=slurm`` or ``CLUSTER=none`` in the environment goes before ``kind``.
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
        """These params, with ``kind`` as the environment says.

        Raises:
            UserError: it names something else.
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
    """From now on this process's environments may start their processes on this cluster."""
    global _in_use
    _in_use = cluster


def in_use() -> ClusterParams:
    """The cluster of the stage that this process runs; for environments, which are made in many places."""
    return _in_use
