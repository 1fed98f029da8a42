"""``make plan``: the stages of the graph, the tokens that they read and write, and the disk space that they need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from dvc.parsing import DataResolver
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.pipeline.params import METHODS, load_section
from selfimprove.pipeline.plan.hardware import Asked, parse_gpus
from selfimprove.pipeline.plan.plan import make_plan, plans, stored_copies
from selfimprove.pipeline.plan.reflect_rl import _reinforcement
from tests.pipeline.planned import PROFILES, ROOT, SIXTY_FOUR_SLOTS, line, no_gpu, overlay  # noqa: F401
from tests.support.profiles import NAMES, profile

GRAPH = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repo]:
    folder = tmp_path_factory.mktemp("graph")
    with Repo.init(str(folder), no_scm=True) as repo:
        yield repo


def resolved(repo: Repo, params: dict) -> dict[str, dict]:
    """The stages of dvc.yaml with these params, as DVC's own resolver returns them."""
    YAML().dump(params, Path(repo.root_dir, "params.yaml"))
    return DataResolver(repo, repo.root_dir, GRAPH).resolve()["stages"]


def is_planned(name: str, stage: dict, params: dict) -> bool:
    """Whether it writes a model, has engines or converts what they wrote to training data; Reflect-RL's data stage has
    one only if a teacher writes questions."""
    if "-convert" in name:
        return True
    if name == "reflect_rl-data":
        return bool(params["reflect_rl"]["tasks"].get("teacher"))
    keys = [str(key) for key in stage.get("params", [])]
    writes = any(str(out).startswith("models/") for out in stage.get("outs", []))
    return writes or any(".engines" in key for key in keys)


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_has_the_stages_of_the_graph_that_use_a_model_or_write_training_data(repo: Repo, name: str) -> None:
    params = profile(name)
    wanted = {stage for stage, entry in resolved(repo, params).items() if is_planned(stage, entry, params)}
    made = [make_plan(name, params, method, Asked(), where=name, memory=80e9) for method in METHODS]
    planned = [line.stage for plan in made for line in plan.lines]
    assert len(planned) == len(set(planned))
    assert set(planned) == wanted


def test_outputs_are_counted_once_if_dvc_links_them_and_twice_if_it_copies_them(tmp_path: Path) -> None:
    config = tmp_path / "config"
    for text, copies in (
        ("[core]\n", 2),
        ('[cache]\n    type = "reflink,copy"\n', 2),
        ('[cache]\n    type = "reflink,hardlink,copy"\n', 1),
    ):
        config.write_text(text)
        assert stored_copies(config) == copies


@pytest.mark.parametrize("method", METHODS)
def test_the_default_s_training_data_are_within_the_planned_disk_space(method: str) -> None:
    written = {
        name: sum(out["size"] for out in stage["outs"])
        for name, stage in YAML(typ="safe", pure=True).load(ROOT / "dvc.lock")["stages"].items()
        if name.startswith(f"{method}-convert")
    }
    assert written
    (plan,) = plans("default", method)
    for name, size in written.items():
        assert size < line(plan, name).kept < 25 * size


def test_lora_rows_store_their_adapters_and_the_newest_three_also_merged_weights() -> None:
    (plan,) = plans("spin-llama2-7b")
    adapter = line(plan, "spin-finetune@iter1").kept
    assert adapter == 4 * 32 * 8 * 4 * 4096  # float32; 32 layers, rank 8, two sides of two square matrices
    assert plan.merged == 3 * 2 * 6_738_415_616
    assert plan.kept > plan.merged + line(plan, "base@spin").kept


def test_generation_uses_all_gpus_unless_replicas_is_set(tmp_path: Path) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()
    assert line(plans("rise-llama2-7b")[0], "rise-evaluate@iter1").gpus == 4
    folder = overlay(tmp_path, text.replace("tensor_parallel: 1", "tensor_parallel: 2, replicas: 1"))
    assert (
        line(plans("mine", asked=Asked(gpus=parse_gpus("4x80GB")), folder=folder)[0], "rise-evaluate@iter1").gpus == 2
    )


def test_tokens_are_proportional_to_problems_and_written_tokens_also_to_samples(tmp_path: Path) -> None:
    def made(problems: int, samples: int) -> tuple[int, int]:
        text = (
            f"rise: {{iterations: {{iter1: {{generate: {{tasks: {problems}, max_turns: 1, models: [student], "
            f"num_of_samples: [{samples}], max_tokens: 64}}}}, iter2: null}}, "
            f"rows: {{iter2: null, more_sft: null, single_turn: null, unweighted: null}}}}"
        )
        (plan,) = plans("mine", folder=overlay(tmp_path, text))
        found = line(plan, "rise-generate@iter1")
        return found.read, found.written

    assert made(200, 1) == tuple(2 * count for count in made(100, 1))
    assert made(100, 4) == (made(100, 1)[0], 4 * made(100, 1)[1])
    assert made(100, 1)[1] == 100 * 64  # max_tokens each


def test_a_teacher_s_tokens_are_counted() -> None:
    (plan,) = plans("rise-llama2-7b")
    requests, _, written = plan.remote["teacher"]
    assert (requests, written) == (12_000, 12_000 * 512)  # one per problem and iteration; the teacher's own max_tokens


def test_checkpoints_are_counted_as_those_kept_plus_the_one_being_written() -> None:
    (plan,) = plans("rise-llama2-7b")
    # ZeRO: master weights and two moments in float32, and 16-bit weights, in stage 2 a second time by DeepSpeed
    assert line(plan, "rise-finetune@iter1").while_running == (2 + 1) * (12 + 2) * 6_738_415_616
    (plan,) = plans("agent-r-llama3.1-8b")
    assert line(plan, "agent_r-finetune@iter1").while_running == (2 + 1) * (12 + 2 + 2) * 8_030_261_248
    (plan,) = plans("spin-llama2-7b")
    adapters = 32 * 8 * 4 * 4096
    assert line(plan, "spin-finetune@base").while_running == (2 + 1) * 12 * adapters


def test_hidden_states_are_float32_if_the_weights_are_quantised(tmp_path: Path) -> None:
    text = (PROFILES / "spin-llama2-7b.yaml").read_text()
    eight = line(plans("mine", folder=overlay(tmp_path, text))[0], "spin-finetune@base").memory.activations
    none = text.replace("quantize: 8bit", "quantize: none")
    half = line(plans("mine", folder=overlay(tmp_path, none))[0], "spin-finetune@base").memory.activations
    inputs = 32 * 8192 * 4096  # of every layer, kept by checkpointing
    assert eight - half > 2 * inputs


def test_an_engine_for_another_model_needs_that_model_s_memory(tmp_path: Path) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()
    teacher = "teacher: {engine: vllm, model: Qwen/Qwen2.5-1.5B-Instruct, gpu_memory: 0.3}"
    text = re.sub(r"teacher: \{.*?\}", teacher, text, flags=re.DOTALL).replace(
        "dtype: bfloat16, tensor", "gpu_memory: 0.6, tensor", 1
    )
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    both = line(plan, "rise-generate@iter1").memory
    assert both.weights == 2 * (6_738_415_616 + 1_543_714_304)
    assert line(plan, "rise-evaluate@iter1").memory.weights == 2 * 6_738_415_616


def test_the_replies_of_a_tree_are_counted_as_dives_times_depth_times_samples() -> None:
    (plan,) = plans("agent-r-llama3.1-8b")
    assert (
        line(plan, "agent_r-generate@iter1").written == 300 * 8 * 21 * 4 * 500
    )  # trees, dives, depth, samples, tokens
    pairs, good = 16 * 16, 16  # of 32 leaves per tree
    assert line(plan, "agent_r-finetune@iter1").read == 300 * (pairs + good) * 8192 * 3


def test_plain_self_play_writes_one_answer_per_prompt_and_trains_on_two_sides() -> None:
    (plan,) = plans("spin-zephyr-7b")
    assert line(plan, "spin-generate@iter0").written == 50_000 * 256
    sides = 50_000 * 2 * 2048
    assert line(plan, "spin-finetune@iter0").read == sides * (2 + 1)  # two epochs, and the opponent once


def test_a_step_of_reinforcement_is_a_reflection_and_an_action_and_is_trained_on_once(tmp_path: Path) -> None:
    text = SIXTY_FOUR_SLOTS.replace("max_steps: 100", "max_steps: 10, episodes: 4, replay_buffer: 0, max_tokens: 50")
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    found = line(plan, "reflect_rl-reinforce@reflect_rl")
    steps = 10 * 4 * 20  # iterations, episodes, turns
    assert found.written == steps * (50 + 1)
    assert found.read == steps * ((1024 - 50) + (1024 - 1) + (1024 - 1))  # reflection, action, training


def test_a_control_trains_on_as_many_tokens_as_the_iterations_that_it_matches() -> None:
    (plan,) = plans("spin-zephyr-7b")
    tokens = [line(plan, f"spin-finetune@iter{k}").read for k in range(4)]
    control = line(plan, "spin-finetune@more_sft").read
    # The iterations' lines also include the tokens that the opponent scores.
    assert sum(tokens) * 0.6 < control < sum(tokens)


def test_a_token_budget_limits_the_tokens_that_reinforcement_reads_and_not_the_number_of_rounds() -> None:
    params = profile("arena-textcraft")["reflect_rl"]
    whole = load_section({"reflect_rl": params}, "reflect_rl", ReflectRLParams, "params.yaml")
    rl = whole.iterations["reflect_rl"].rl
    calls, training, tokens = _reinforcement(whole, "reflect_rl", whole.iterations["reflect_rl"])
    decisions = rl.episodes * whole.env.max_turns
    full = decisions * (whole.engines["policy"].context - 1)  # type: ignore[union-attr]
    assert rl.max_train_tokens is not None
    assert rl.max_train_tokens <= tokens < rl.max_train_tokens + 4 * full  # one round of full prompts more
    assert sum(call.read for call in calls) < 10 * rl.max_train_tokens
    # Prompts are much shorter: the published runs took up to 6 rounds here, and 20 on the encyclopedia, for the tokens
    # of 2 and 3 rounds of full prompts.
    assert training.steps == rl.max_steps
    assert [call.requests for call in calls] == [rl.max_steps * decisions] * 2
    assert [call.written for call in calls] == [rl.max_steps * decisions * new for new in (rl.max_tokens, 1)]


@pytest.mark.parametrize("world", ["encyclopedia", "textcraft"])
def test_the_published_arenas_generated_no_more_tokens_than_planned(world: str) -> None:
    planned = {
        plan.method: sum(one.written for one in plan.lines if "-evaluate@" not in one.stage)
        for plan in plans(f"arena-{world}")
    }
    runs = sorted((ROOT / "results/published/arena").glob(f"{world}-*.json"))
    assert runs
    for run in runs:
        methods = json.loads(run.read_text(encoding="utf-8"))["arena"]["methods"]
        assert {method for method, told in methods.items() if told["generated"] > planned[method]} == set()
