#!/usr/bin/env bash
# Rewrites requirements/main.lock from pyproject.toml. torch and what only torch needs (the CUDA wheels) stay out:
# the Makefile installs torch first, in the build that suits the machine, and everything else from this hashed lock.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-.venv/bin/uv}"
skip=(torch triton cuda-bindings cuda-pathfinder cuda-toolkit
  nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
"$uv" pip compile pyproject.toml --group dev --generate-hashes --no-header --no-annotate --quiet \
  --python-version 3.11 "${skip[@]/#/--no-emit-package=}" -o requirements/main.lock
