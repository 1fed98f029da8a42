"""vLLM on a CPU with the real small model: log-probabilities on GSM8K and HotpotQA rows equal transformers'.

Runs in .venvs/vllm (``make test-backends-smollm2``).
"""

from __future__ import annotations

import pytest

from selfimprove.engines.vllm.engine import VllmEngine
from tests.backends.smollm2_checks import CONTEXT, answered, check
from tests.backends.smollm2_rows import model
from tests.backends.vllm_asking import config, run

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]


def test_vllms_log_probabilities_on_real_rows_equal_those_of_transformers() -> None:
    engine = VllmEngine(config(context=CONTEXT), model())
    check(answered(engine))
    run(engine.close())
