"""``make plan``: what fits a machine, and the key to change for what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.pipeline.plan.hardware import GB, GPUS, Asked, Hardware, parse_gpus
from selfimprove.pipeline.plan.inference import GRAPH_LAYER, engine_seconds, loaded_engine
from selfimprove.pipeline.plan.plan import plans
from selfimprove.pipeline.plan.shapes import shape_of
from selfimprove.pipeline.plan.training import LAUNCH_LAYER, loading_bytes, training_seconds
from selfimprove.pipeline.plan.work import Calls, Training
from selfimprove.pipeline.profiles import names
from selfimprove.training.config import FinetuneParams, LoraConfig
from tests.pipeline.planned import PROFILES, SIXTY_FOUR_SLOTS, line, no_gpu, overlay  # noqa: F401


@pytest.mark.parametrize("profile", names(PROFILES))
def test_every_profile_fits_the_machine_it_is_intended_for(profile: str) -> None:
    for plan in plans(profile):
        assert not plan.problems
        assert all(line.memory.total <= plan.machine.memory for line in plan.lines)
        uses = any(line.gpus for line in plan.lines)
        assert (plan.hours is not None) == uses


@pytest.mark.parametrize("method", ["rise", "agent_r", "spin"])
def test_a_base_from_scratch_supports_the_context_lengths_of_the_default_profile(method: str, tmp_path: Path) -> None:
    folder = overlay(tmp_path, f"base: {{{method}: {{model: null, chat_template: null}}}}\n")
    for plan in plans("mine", folder=folder):
        assert not plan.problems


def test_reinforcement_with_64_slots_of_two_gpt2_xl_does_not_fit_40_or_80_gb(tmp_path: Path) -> None:
    folder = overlay(tmp_path, SIXTY_FOUR_SLOTS)
    for gpus in ("1x40GB", "1x80GB"):  # 45 GB each, including the cached prompt blocks
        (plan,) = plans("mine", asked=Asked(gpus=parse_gpus(gpus)), folder=folder)
        found = [problem for problem in plan.problems if "reflect_rl-reinforce@reflect_rl" in problem]
        assert len(found) == 1
        assert "KV cache" in found[0]
        assert "reflect_rl.engines.policy.slots" in found[0]


def test_kv_caches_of_a_quantised_policy_and_of_the_reflector_take_two_bytes_per_value(tmp_path: Path) -> None:
    (plan,) = plans("mine", folder=overlay(tmp_path, SIXTY_FOUR_SLOTS))
    token = 2 * 48 * 1600  # keys and values of one token
    rows = 64 + 64 + 16  # slots, the same number again for cached prompt blocks, and prefill rows
    assert line(plan, "reflect_rl-reinforce@reflect_rl").memory.kv == rows * 1024 * token * (2 + 2)


def test_each_of_xtuner_s_processes_reads_the_model_to_host_memory_in_float32() -> None:
    """Our trainer reads it to the GPU, one tensor at a time."""
    shape = shape_of("meta-llama/Llama-3.1-8B-Instruct")
    launcher = {"kind": "deepspeed", "zero_stage": 2, "processes": 8}
    shared = {"device": "cuda", "dtype": "bfloat16", "launcher": launcher}
    ours, theirs = (FinetuneParams.model_validate({**shared, "backend": one}) for one in ("trainer", "xtuner"))
    assert loading_bytes(ours, shape) == max(8 * 4 * shape.embedding, 2 * shape.parameters)
    assert loading_bytes(theirs, shape) == 8 * 4 * shape.parameters


def test_the_planned_kv_cache_is_what_the_transformers_engine_allocates(tmp_path: Path) -> None:
    from selfimprove.engines.cpu.engine import TransformersEngine
    from tests.support.tiny import make_tiny_model

    folder = make_tiny_model(tmp_path / "model")
    sizes: dict[str, Any] = {"slots": 8, "context": 48, "prefill_rows": 2, "prefill_block": 32}
    engine = TransformersEngine(TransformersEngineConfig(engine="transformers", **sizes), folder, threads=1)
    planned = loaded_engine(
        "engines.x", TransformersEngineConfig(engine="transformers", device="cuda", **sizes), shape_of(str(folder)),
        Hardware(1, 80 * GB, GPUS["H100"]),
    )  # fmt: skip
    slots, reading = engine._decoder.slots.kv, engine._decoder.reading.kv
    block = slots[:, 0, :, :1].nbytes * sizes["prefill_block"]
    kept = engine._prompts.cache._most * block
    assert planned.kv == pytest.approx(slots.nbytes + reading.nbytes + kept, abs=block)


def test_a_7b_model_with_zero_3_fits_four_gpus_of_80_gb_and_not_one_of_24(tmp_path: Path) -> None:
    (plan,) = plans("rise-llama2-7b", asked=Asked(gpus=parse_gpus("4x80GB")))
    assert not plan.problems
    trained = line(plan, "rise-finetune@iter1")
    assert trained.gpus == 4
    assert 27 * GB < trained.memory.total < 45 * GB  # 16 bytes per parameter, sharded over four, and activations
    (small,) = plans("rise-llama2-7b", asked=Asked(gpus=parse_gpus("1x24GB")))
    assert any(
        "rise.rows.base.train.launcher.processes is 4, but a machine has only 1 GPU; lower" in problem
        for problem in small.problems
    )
    text = (PROFILES / "rise-llama2-7b.yaml").read_text().replace("processes: 4", "processes: 1")
    (one,) = plans("mine", asked=Asked(gpus=parse_gpus("1x24GB")), folder=overlay(tmp_path, text))
    where = "on a GPU of 24.0 GB"
    [said] = (problem for problem in one.problems if where in problem and "rise-finetune@base" in problem)
    assert "launcher.processes, set offload: true there, or add lora" in said, "ZeRO-3 is set already"


def test_zero_3_shards_the_frozen_base_of_adapters_too(tmp_path: Path) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()

    def weights(launcher: str) -> float:
        own = text.replace("zero_stage: 3", launcher).replace("launcher:", "lora: {}\n        launcher:")
        (plan,) = plans("mine", asked=Asked(gpus=parse_gpus("4x80GB")), folder=overlay(tmp_path, own))
        return line(plan, "rise-finetune@iter1").memory.weights

    base, layer = 2 * 6_738_415_616, 2 * 202_375_168
    adapters = weights("zero_stage: 2") - base
    assert 0 < adapters < base / 50
    assert weights("zero_stage: 3") == base / 4 + layer + adapters
    assert weights("zero_stage: 3, offload: true") == layer + adapters


def test_a_small_model_trains_and_decodes_as_fast_as_its_kernels_are_launched() -> None:
    shape, machine = shape_of("HuggingFaceTB/SmolLM2-135M-Instruct"), Hardware(1, 80 * GB, GPUS["H100"])
    params = FinetuneParams(dtype="bfloat16", device="cuda", micro_batch_tokens=8192, row_tokens=1024, max_length=1024)
    adapted = params.model_copy(update={"lora": LoraConfig(), "gradient_checkpointing": True})
    seconds = {
        name: training_seconds(Training("x", one, 81_920, 1024, 10), shape, machine)
        for name, one in {"all": params, "adapters": adapted}.items()
    }
    assert seconds["all"] == pytest.approx(10 * 30 * LAUNCH_LAYER)
    assert seconds["adapters"] == pytest.approx(2 * 4 / 3 * seconds["all"])
    learner = RLParams(device="cuda", tf32=True, micro_batch_tokens=8192, row_tokens=1024)
    assert training_seconds(Training("x", learner, 81_920, 1024, 10), shape, machine) == pytest.approx(seconds["all"])
    single = Training("x", params.model_copy(update={"batch_size": 1}), 81_920, 1024, 80)
    assert training_seconds(single, shape, machine) == pytest.approx(8 * seconds["all"])  # a step, a pass
    wide = Training("x", params.model_copy(update={"micro_batch_tokens": 81_920, "batch_size": 80}), 81_920, 1024, 1)
    assert training_seconds(wide, shape, machine) < seconds["all"] / 5
    engine = TransformersEngineConfig(engine="transformers", device="cuda", dtype="bfloat16", slots=256)
    call = Calls("x", 256, 256 * 30, 30, 64, 256 * 64, 256)
    least = 64 * 30 * GRAPH_LAYER
    for held in (None, "float32"):
        seconds_each = engine_seconds(call, loaded_engine("x", engine, shape, machine, held), shape, machine)
        assert least <= seconds_each < 2 * least


@pytest.mark.parametrize(
    ("old", "new", "gpus", "said"),
    [
        ("processes: 4", "processes: 5", "4x80GB", "launcher.processes is 5, but a machine has only 4 GPUs; lower it"),
        (
            "tensor_parallel: 1",
            "tensor_parallel: 3",
            "4x80GB",
            "student: engine vllm: tensor_parallel 3 does not divide",
        ),
        (
            "tensor_parallel: 1",
            "tensor_parallel: 3",
            "6x80GB",
            "tensor_parallel is 3, which does not divide the model's",
        ),
        ("context: 4096", "context: 4097", "4x80GB", "student.context is 4097, but the model has only 4096 positions"),
        ("tensor_parallel: 1", "replicas: 5", "4x80GB", "5 replicas x tensor_parallel 1 need 5 GPUs"),
        ("tensor_parallel: 1", "gpu_memory: 0.2", "4x80GB", "gpu_memory leaves 0.2 GB of 80.0 GB for KV cache"),
    ],
)
def test_settings_that_do_not_fit_are_reported_with_their_key(
    tmp_path: Path, old: str, new: str, gpus: str, said: str
) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()
    assert old in text
    (plan,) = plans("mine", asked=Asked(gpus=parse_gpus(gpus)), folder=overlay(tmp_path, text.replace(old, new)))
    assert any(said in problem for problem in plan.problems), plan.problems


def test_training_may_leave_some_gpus_of_a_machine_idle() -> None:
    (plan,) = plans("rise-llama2-7b", asked=Asked(gpus=parse_gpus("6x80GB")))  # four processes
    assert not plan.problems
    assert [line(plan, f"rise-{stage}@iter1").gpus for stage in ("evaluate", "finetune")] == [6, 4]


def test_training_on_more_machines_than_are_planned_for_does_not_fit(tmp_path: Path) -> None:
    text = (
        (PROFILES / "rise-llama2-7b.yaml")
        .read_text()
        .replace("deepspeed, processes: 4", "deepspeed, nodes: 2, processes: 4")
    )
    folder = overlay(tmp_path, text)
    (plan,) = plans("mine", folder=folder)
    said = "rise.rows.base.train.launcher.nodes is 2, but the plan is for 1 machine; set NODES=2, or lower it."
    assert f"rise-finetune@base: {said}" in plan.problems
    (plan,) = plans("mine", asked=Asked(nodes=2), folder=folder)
    assert not plan.problems


def test_the_opponent_s_weights_are_counted_in_full_on_each_gpu(tmp_path: Path) -> None:
    text = (
        (PROFILES / "spin-zephyr-7b.yaml").read_text().replace("micro_batch_tokens: 16384", "micro_batch_tokens: 256")
    )
    text = text.replace("max_length: 2048", "max_length: 128").replace(
        "max_prompt_length: 1024", "max_prompt_length: 64"
    )
    text = text.replace("row_tokens: 2048", "row_tokens: 128").replace("processes: 8", "processes: 16")
    folder = overlay(tmp_path, text)
    needs = line(plans("mine", folder=folder)[0], "spin-finetune@iter0").memory
    assert needs.weights == 2 * 7_241_732_096  # training needs a fraction of that, sharded over sixteen
    assert needs.optimiser == 0


def test_max_length_may_not_exceed_the_number_of_learned_positions(tmp_path: Path) -> None:
    text = SIXTY_FOUR_SLOTS + "  models: {policy: {train: {max_length: 2048}}}\n"
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    assert any("models.policy.train.max_length is 2048, but the model has 1024" in one for one in plan.problems)


@pytest.mark.parametrize(
    ("profile", "disk", "most", "remedy"),
    [
        ("rise-llama2-7b", "100 GB", "rise-finetune@base", "lower its save_total_limit, remove iterations"),
        ("spin-llama2-7b", "1.50 GB", "base@spin", "remove iterations"),  # it keeps no checkpoints
    ],
)
def test_a_disk_that_is_too_small_is_reported_with_the_stage_that_takes_most_and_a_way_to_save_space(
    profile: str, disk: str, most: str, remedy: str
) -> None:
    (plan,) = plans(profile, asked=Asked(disk=float(disk.split()[0]) * GB))
    (said,) = plan.problems
    largest = max(one.kept + one.while_running for one in plan.lines)
    assert line(plan, most).kept + line(plan, most).while_running == largest
    size = f"{largest / GB:.0f} GB" if largest > 100 * GB else f"{largest / GB:.2f} GB"
    assert f"but DISK is {disk}, and {most} takes the most ({size}); {remedy}" in said
    assert not plans(profile, asked=Asked(disk=2000 * GB))[0].problems


def test_two_vllm_engines_of_a_stage_share_the_gpus_memory(tmp_path: Path) -> None:
    engines = "reflector: &fast {engine: vllm, context: 1024}\n    fast: *fast\n  evaluate: {engine: fast}"
    text = SIXTY_FOUR_SLOTS.replace("reflector: *small", engines)
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    assert any("gpu_memory of the engines that share GPU 0 adds up to 1.8" in problem for problem in plan.problems)
    (plan,) = plans("mine", folder=overlay(tmp_path, text.replace("1024}", "1024, gpu_memory: 0.45}")))
    assert not [problem for problem in plan.problems if "evaluate" in problem]
