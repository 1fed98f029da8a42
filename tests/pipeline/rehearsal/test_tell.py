"""The closing report: minutes, what ran as in the profile, what was replaced, and what can be tested only on a GPU."""

from __future__ import annotations

import pytest

from selfimprove.pipeline.rehearsal.rule import Here, rehearsed
from selfimprove.pipeline.rehearsal.tell import tell
from selfimprove.pipeline.sections import spelled_out
from tests.support.profiles import profile


def report(name: str, method: str, gpus: int) -> list[str]:
    asked = spelled_out(profile(name))
    models = {} if gpus else {method: "models/smollm2"}
    run, made = rehearsed(asked, [method], Here(gpus, models, "http://127.0.0.1:9/v1", "chats", "snippets.jsonl"))
    return tell(name, [method], asked, run, made, {"inputs": 0.25, f"{method}-sft": 2.0}, gpus).splitlines()


def section(lines: list[str], title: str) -> str:
    """The lines below a title, up to the next empty one."""
    rest = lines[lines.index(title) + 1 :]
    return "\n".join(rest[: rest.index("")] if "" in rest else rest)


def test_without_a_gpu_the_report_lists_what_was_kept_replaced_and_not_rehearsed() -> None:
    lines = report("rise-llama2-7b", "rise", gpus=0)
    assert lines[1] == "rise-llama2-7b: the whole graph of rise ran on the CPU in 2.2 minutes."
    assert "2.00 min  rise-sft" in "\n".join(lines)
    stayed = section(lines, "as in the profile")
    assert "engines student: vllm, teacher: openai" in stayed
    assert "training by trainer, deepspeed ZeRO-3, all weights" in stayed
    replaced = section(lines, "replaced")
    assert "base.rise.model: meta-llama/Llama-2-7b-chat-hf -> models/smollm2" in replaced
    assert "rise.engines.teacher.base_url: https://api.openai.com/v1 -> http://127.0.0.1:9/v1" in replaced
    assert "vLLM: its build for GPUs -> its build for CPUs" in replaced
    missing = section(lines, "not rehearsed without a GPU")
    for words in ("CUDA itself", "FlashAttention", "bfloat16", "vLLM's CUDA kernels", "the real teacher's answers"):
        assert words in missing


@pytest.mark.parametrize("name", ["spin-24gb", "reflect-rl-smollm2"])
def test_features_that_a_profile_does_not_use_are_not_listed_as_not_rehearsed(name: str) -> None:
    method = {"spin-24gb": "spin", "reflect-rl-smollm2": "reflect_rl"}[name]
    lines = report(name, method, gpus=0)
    assert "the real teacher" not in "\n".join(lines)
    assert ("not rehearsed without a GPU" in lines) == (name == "spin-24gb")


def test_with_gpus_everything_is_rehearsed_and_the_model_is_not_replaced() -> None:
    lines = report("rise-llama2-7b", "rise", gpus=4)
    assert "ran on 4 GPUs in" in lines[1]
    assert "not rehearsed without a GPU" not in lines
    assert "base.rise.model" not in section(lines, "replaced")
