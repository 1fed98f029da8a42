"""``make plan``: the stages of the graph, what fits and what does not, and how it says no."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest
from dvc.parsing import DataResolver
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove import cli
from selfimprove.errors import UserError
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.plan import plan as planning
from selfimprove.pipeline.plan.__main__ import app
from selfimprove.pipeline.plan.estimate import Estimate
from selfimprove.pipeline.plan.hardware import GB, GPUS, parse_gpus, visible_gpus
from selfimprove.pipeline.plan.plan import Plan, make_plan, methods_of, plans, stored_copies
from selfimprove.pipeline.profiles import compose, composed, names

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "profiles"
GRAPH = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan on a machine with GPUs."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(planning, "visible_gpus", lambda: None)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repo]:
    folder = tmp_path_factory.mktemp("graph")
    with Repo.init(str(folder), no_scm=True) as repo:
        yield repo


def resolved(repo: Repo, params: dict) -> dict[str, dict]:
    """The stages of dvc.yaml under params, by DVC's own resolver."""
    YAML().dump(params, Path(repo.root_dir, "params.yaml"))
    return DataResolver(repo, repo.root_dir, GRAPH).resolve()["stages"]


def uses_a_model(name: str, stage: dict, params: dict) -> bool:
    """It writes a model, or has engines; or a teacher asks the questions."""
    keys = [str(key) for key in stage.get("params", [])]
    writes = any(str(out).startswith("models/") for out in stage.get("outs", []))
    asks = name == "reflect_rl-data" and params["reflect_rl"]["tasks"].get("teacher")
    return bool(writes or asks or any(key.endswith(".engines") for key in keys))


def overlay(tmp_path: Path, text: str) -> Path:
    """A folder of profiles with one more, ``mine``."""
    shutil.copy(PROFILES / "default.yaml", tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    return tmp_path


def line(plan: Plan, stage: str) -> Estimate:
    return next(line for line in plan.lines if line.stage == stage)


class Ended(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: str) -> Ended:
    """The command line, in a terminal of 80 columns."""
    stdout, stderr = StringIO(), StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        cli.run(app, arguments)
    return Ended(int(ended.value.code or 0), stdout.getvalue(), stderr.getvalue())


@pytest.mark.parametrize("profile", names(PROFILES))
def test_the_plan_s_stages_are_those_of_the_graph_that_use_a_model(repo: Repo, profile: str) -> None:
    params = composed(profile, PROFILES)
    wanted = {name for name, stage in resolved(repo, params).items() if uses_a_model(name, stage, params)}
    settings = {"gpus": None, "gpu": None, "disk": None, "price": None}
    planned = [line.stage for method in METHODS for line in make_plan(profile, params, method, **settings).lines]
    assert len(planned) == len(set(planned))
    assert set(planned) == wanted


@pytest.mark.parametrize("profile", sorted({*names(PROFILES)} - {"reflect-rl-gpt2-xl"}))
def test_every_profile_fits_the_machine_that_it_is_for(profile: str) -> None:
    for plan in plans(profile):
        assert not plan.problems
        assert all(line.memory.total <= plan.machine.memory for line in plan.lines)
        uses = any(line.gpus for line in plan.lines)
        assert (plan.hours is not None) == uses


def test_a_profile_s_values_are_those_that_use_writes() -> None:
    for profile in ("default", "reflect-rl-autoexplore"):
        assert composed(profile, PROFILES) == YAML(typ="safe", pure=True).load(compose(profile, PROFILES))


def test_a_profile_plans_its_own_methods_and_the_default_all() -> None:
    assert methods_of("rise-llama2-7b") == ["rise"]
    assert methods_of("default") == ["rise", "agent_r", "reflect_rl", "spin"]


def test_a_profile_without_gpus_says_so() -> None:
    done = command("gsm8k-cpu")
    assert done.returncode == 0
    assert "no GPU is needed" in done.stdout
    (plan,) = plans("gsm8k-cpu")
    assert plan.hours is None
    assert all(line.gpus == 0 and line.host > 0 for line in plan.lines)


# The profile as it was: two models' KV caches, one in float32 since the trainer's 8-bit policy has float32 embeddings.
SIXTY_FOUR_SLOTS = """
base: {reflect_rl: {model: openai-community/gpt2-xl, revision: 15ea56dee5df4983c59b2538573817e1667135e2}}
reflect_rl:
  engines:
    policy: &small {engine: transformers, model: policy, replicas: 1, slots: 64, context: 1024, prefill_rows: 16,
      prefill_block: 128, dtype: bfloat16, device: cuda}
    reflector: *small
  iterations:
    reflect_rl: {rl: {max_steps: 100, dtype: bfloat16, attention: sdpa, device: cuda, gradient_checkpointing: true,
      lora: {rank: 64, alpha: 16, dropout: 0.0, quantize: 8bit}, launcher: {kind: single, processes: 1}}}
"""


def test_reinforcement_with_64_slots_of_two_gpt2_xl_is_refused_on_40_and_80_gb(tmp_path: Path) -> None:
    folder = overlay(tmp_path, SIXTY_FOUR_SLOTS)
    for gpus in ("1x40GB", "1x80GB"):
        (plan,) = plans("mine", gpus=parse_gpus(gpus), folder=folder)
        found = [problem for problem in plan.problems if "reflect_rl-finetune@reflect_rl" in problem]
        assert len(found) == 1
        assert "KV cache" in found[0]
        assert "reflect_rl.engines.policy.slots" in found[0]


def test_the_cache_over_a_quantised_policy_is_float32_and_the_reflector_s_its_own_precision(tmp_path: Path) -> None:
    (plan,) = plans("mine", folder=overlay(tmp_path, SIXTY_FOUR_SLOTS))
    token = 2 * 48 * 1600  # keys and values of a token
    rows = 64 + 64 + 16  # slots, as much again for kept blocks, and reading rows
    assert line(plan, "reflect_rl-finetune@reflect_rl").memory.kv == rows * 1024 * token * (4 + 2)


def test_the_transformers_engine_allocates_the_cache_that_the_plan_counts(tmp_path: Path) -> None:
    from selfimprove.engines.config import TransformersEngineConfig
    from selfimprove.engines.transformers import TransformersEngine
    from selfimprove.pipeline.plan.hardware import Hardware
    from selfimprove.pipeline.plan.inference import loaded_engine
    from selfimprove.pipeline.plan.shapes import shape_of
    from tests.tiny import make_tiny_model

    folder = make_tiny_model(tmp_path / "model")
    sizes = {"slots": 8, "context": 48, "prefill_rows": 2, "prefill_block": 32}
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
    (plan,) = plans("rise-llama2-7b", gpus=parse_gpus("4x80GB"))
    assert not plan.problems
    trained = line(plan, "rise-finetune@iter1")
    assert trained.gpus == 4
    assert 27 * GB < trained.memory.total < 45 * GB  # 16 bytes a parameter over four, and activations
    (small,) = plans("rise-llama2-7b", gpus=parse_gpus("1x24GB"))
    assert any("rise.sft.launcher.processes is 4" in problem for problem in small.problems)
    text = (PROFILES / "rise-llama2-7b.yaml").read_text().replace("processes: 4", "processes: 1")
    (one,) = plans("mine", gpus=parse_gpus("1x24GB"), folder=overlay(tmp_path, text))
    assert any("on a GPU of 24.0 GB" in problem and "rise-sft" in problem for problem in one.problems)


@pytest.mark.parametrize(
    ("old", "new", "gpus", "said"),
    [
        ("processes: 4", "processes: 3", "4x80GB", "launcher.processes is 3, which does not divide 4 GPUs"),
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
        ("context: 4096", "context: 4097", "4x80GB", "student.context is 4097, but the model has 4096 positions"),
        ("tensor_parallel: 1", "replicas: 5", "4x80GB", "5 replicas x tensor_parallel 1 need 5 GPUs"),
        ("tensor_parallel: 1", "gpu_memory: 0.2", "4x80GB", "gpu_memory leaves 0.2 GB of 80.0 GB for KV cache"),
    ],
)
def test_what_does_not_fit_is_named_with_its_key(tmp_path: Path, old: str, new: str, gpus: str, said: str) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()
    assert old in text
    (plan,) = plans("mine", gpus=parse_gpus(gpus), folder=overlay(tmp_path, text.replace(old, new)))
    assert any(said in problem for problem in plan.problems), plan.problems


def test_an_opponent_lies_whole_on_each_gpu_before_training_shards_the_model(tmp_path: Path) -> None:
    text = (
        (PROFILES / "spin-zephyr-7b.yaml").read_text().replace("micro_batch_tokens: 16384", "micro_batch_tokens: 256")
    )
    text = text.replace("max_length: 2048", "max_length: 128").replace(
        "max_prompt_length: 1024", "max_prompt_length: 64"
    )
    text = text.replace("row_tokens: 2048", "row_tokens: 128").replace("processes: 8", "processes: 16")
    folder = overlay(tmp_path, text)
    needs = line(plans("mine", folder=folder)[0], "spin-finetune@iter0").memory
    assert needs.weights == 2 * 7_241_732_096  # sharded over sixteen, training needs a fraction of that
    assert needs.optimiser == 0


def test_positions_that_are_learned_bound_what_is_trained_on(tmp_path: Path) -> None:
    text = SIXTY_FOUR_SLOTS + "  sft: {policy: {finetune: {max_length: 2048}}}\n"
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    assert any("sft.policy.finetune.max_length is 2048, but the model has 1024" in one for one in plan.problems)


def test_a_disk_that_is_too_small_is_named_with_the_stage_that_takes_most() -> None:
    (plan,) = plans("rise-llama2-7b", disk=100 * GB)
    assert any("DISK is 100 GB" in problem and "save_total_limit" in problem for problem in plan.problems)
    assert not plans("rise-llama2-7b", disk=2000 * GB)[0].problems


def test_outputs_count_once_where_dvc_links_and_twice_where_it_copies(tmp_path: Path) -> None:
    config = tmp_path / "config"
    for text, copies in (
        ("[core]\n", 2),
        ('[cache]\n    type = "reflink,copy"\n', 2),
        ('[cache]\n    type = "reflink,hardlink,copy"\n', 1),
    ):
        config.write_text(text)
        assert stored_copies(config) == copies


def test_a_lora_row_keeps_its_adapter_and_the_newest_are_merged_beside() -> None:
    (plan,) = plans("spin-llama2-7b")
    adapter = line(plan, "spin-finetune@iter1").kept
    assert adapter == 4 * 32 * 8 * 4 * 4096  # float32; 32 layers, rank 8, two sides of two square matrices
    assert plan.merged == 3 * 2 * 6_738_415_616
    assert plan.kept > plan.merged + line(plan, "base@spin").kept


def test_stages_that_leave_gpus_idle_are_named() -> None:
    done = command("spin-llama2-7b", "--gpus", "2x80GB")
    assert "Some of the 2 GPUs are idle in sft, finetune@iter0" in " ".join(done.stdout.split())


def test_a_machine_s_own_gpus_are_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf 'NVIDIA H100 80GB HBM3, 81559\\nNVIDIA H100 80GB HBM3, 81559\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == (2, 81559 * 2**20, GPUS["H100"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = visible_gpus()
    assert found is not None
    assert found[0] == 1
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert visible_gpus() is None


def test_two_vllm_engines_of_a_stage_share_the_gpus_memory(tmp_path: Path) -> None:
    text = re.sub(r"policy: &small.*\n.*\n", "policy: &small {engine: vllm, context: 1024}\n", SIXTY_FOUR_SLOTS)
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    assert any("gpu_memory of the engines that share GPU 0 adds up to 1.8" in problem for problem in plan.problems)
    (plan,) = plans("mine", folder=overlay(tmp_path, text.replace("1024}", "1024, gpu_memory: 0.45}")))
    assert not [problem for problem in plan.problems if "evaluate" in problem]


def test_all_gpus_generate_unless_replicas_say_otherwise(tmp_path: Path) -> None:
    text = (PROFILES / "rise-llama2-7b.yaml").read_text()
    assert line(plans("rise-llama2-7b")[0], "rise-evaluate@iter1").gpus == 4
    folder = overlay(tmp_path, text.replace("tensor_parallel: 1", "tensor_parallel: 2, replicas: 1"))
    assert line(plans("mine", gpus=parse_gpus("4x80GB"), folder=folder)[0], "rise-evaluate@iter1").gpus == 2


def test_twice_the_problems_are_twice_the_tokens_and_four_samples_four_times_those_written(tmp_path: Path) -> None:
    def made(problems: int, samples: int) -> tuple[int, int]:
        text = (
            f"rise: {{iterations: {{iter1: {{generate: {{problems: {problems}, max_turns: 1, models: [student], "
            f"num_of_samples: [{samples}]}}}}, iter2: null}}, controls: null}}"
        )
        (plan,) = plans("mine", folder=overlay(tmp_path, text))
        found = line(plan, "rise-generate@iter1")
        return found.read, found.written

    assert made(200, 1) == tuple(2 * count for count in made(100, 1))
    assert made(100, 4) == (made(100, 1)[0], 4 * made(100, 1)[1])
    assert made(100, 1)[1] == 100 * 64  # max_tokens each


def test_a_teacher_s_tokens_are_counted_and_priced(tmp_path: Path) -> None:
    (plan,) = plans("rise-llama2-7b")
    requests, _, written = plan.remote["teacher"]
    assert (requests, written) == (12_000, 12_000 * 512)  # one a problem and iteration, of the teacher's own max_tokens
    done = command("rise-llama2-7b", "--price", "0,2", "--gpus", "4x80GB")
    assert done.returncode == 0
    assert f"{12_000 * 512 * 2 / 1e6:.2f}" in done.stdout


def test_a_tree_has_at_most_its_dives_depth_and_samples_in_replies() -> None:
    (plan,) = plans("agent-r-llama3.1-8b")
    assert (
        line(plan, "agent_r-generate@iter1").written == 300 * 8 * 21 * 4 * 500
    )  # trees, dives, depth, samples, tokens
    pairs, good = 16 * 16, 16  # of 32 leaves a tree
    assert line(plan, "agent_r-finetune@iter1").read == 300 * (pairs + good) * 8192 * 3


def test_plain_self_play_writes_one_answer_a_prompt_and_trains_on_two_sides() -> None:
    (plan,) = plans("spin-zephyr-7b")
    assert line(plan, "spin-generate@iter0").written == 50_000 * 256
    sides = 50_000 * 2 * 2048
    assert line(plan, "spin-finetune@iter0").read == sides * (2 + 1)  # two epochs, and the opponent once


def test_a_step_of_reinforcement_is_a_reflection_and_a_choice_and_is_learnt_once(tmp_path: Path) -> None:
    text = SIXTY_FOUR_SLOTS.replace(
        "max_steps: 100", "max_steps: 10, episodes: 4, replay_buffer: 0, max_new_tokens: 50"
    )
    (plan,) = plans("mine", folder=overlay(tmp_path, text))
    found = line(plan, "reflect_rl-finetune@reflect_rl")
    steps = 10 * 4 * 20  # iterations, episodes, the horizon
    assert found.written == steps * (50 + 1)
    assert found.read == steps * ((1024 - 50) + (1024 - 1) + (1024 - 1))  # advised, played, learnt


def test_a_control_reads_what_the_iterations_before_it_read() -> None:
    (plan,) = plans("spin-zephyr-7b")
    tokens = [line(plan, f"spin-finetune@iter{k}").read for k in range(4)]
    control = line(plan, "spin-control-finetune@more_sft").read
    # The iterations' lines also have what the opponent scores.
    assert sum(tokens) * 0.6 < control < sum(tokens)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rise-llama-7b"], "did you mean 'rise-llama2-7b'?"),
        (["default", "--method", "rize"], "METHOD='rize' is no method; there are rise, agent_r, reflect_rl, spin."),
        (["default", "--gpus", "four"], "GPUS='four' is not a number of GPUs and their memory"),
        (["default", "--gpus", "0x80GB"], "write for example GPUS=4x80GB."),
        (["default", "--disk", "2"], "DISK='2' is not a size"),
        (["default", "--price", "0.5"], "PRICE='0.5' is not a price"),
        (["default", "--gpu", "H10"], "GPU='H10' is not in the plan's table; did you mean H100?"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_table_is_whole_at_80_columns_and_ends_with_a_no_and_exit_code_2() -> None:
    done = command("rise-llama2-7b", "--gpus", "1x24GB", "--detail")
    assert done.returncode == 2
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert re.search(r"^no: rise-sft: rise\.sft\.launcher\.processes is 4", done.stderr, re.MULTILINE)
    for stage in ("generate@iter1", "control-finetune@single_turn", "total"):
        assert stage in done.stdout


def test_the_totals_of_all_gpu_profiles_are_one_table() -> None:
    done = command("all")
    assert done.returncode == 0
    rows = done.stdout.strip().splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert any(row.startswith("| `spin-zephyr-7b`") for row in rows)
    assert not any("gsm8k-cpu" in row for row in rows)


def test_make_plan_passes_its_settings_on() -> None:
    shown = subprocess.run(
        ["make", "-n", "plan", "PROFILE=rise-llama2-7b", "METHOD=rise", "GPUS=4x80GB", "GPU=A100", "DISK=2TB",
         "PRICE=1,2", "ARGS=--detail"], cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for part in (
        "'rise-llama2-7b'",
        "--method 'rise'",
        "--gpus '4x80GB'",
        "--gpu 'A100'",
        "--disk '2TB'",
        "--price '1,2'",
    ):
        assert part in shown
    assert "--detail" in shown


def test_a_broken_profile_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape("rise.evaluate.max_turn: unknown key; did you mean 'max_turns'?")):
        plans("mine", folder=overlay(tmp_path, "rise: {evaluate: {max_turn: 3}}"))
