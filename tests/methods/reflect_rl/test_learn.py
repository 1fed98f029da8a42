"""Reinforcement learning end to end, with a tiny model in a corridor (docs/reflect-rl.md, L15 to L28)."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.engines.cache import RememberingEngine
from selfimprove.engines.config import OpenAiEngineConfig, TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.methods.reflect_rl.curriculum import phases
from selfimprove.methods.reflect_rl.learn import learn
from selfimprove.methods.reflect_rl.logs import log_curve
from selfimprove.methods.reflect_rl.reflector import files_hash
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_job import RLJob
from selfimprove.methods.reflect_rl.rl_learner import Learner
from selfimprove.methods.reflect_rl.rl_models import load_policy
from selfimprove.methods.reflect_rl.rl_objective import RLTrajectory
from selfimprove.methods.reflect_rl.rl_policy import Policy, example, order, weights_hash
from selfimprove.methods.reflect_rl.rl_run import Run
from selfimprove.methods.reflect_rl.start import check_environment, mark_environment
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merging import full_weights
from selfimprove.training import fork
from tests.engines.http_endpoint import answer, endpoint
from tests.methods.reflect_rl.corridor import Corridor, nan_cost
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

PARAMS = {
    "max_steps": 6, "episodes": 6, "lr": 3e-3, "replay_episodes": 3, "max_tokens": 5, "save_steps": 2,
    "row_tokens": 100, "log_episodes": 2,
}  # fmt: skip


def make_job(model: Path, place: Path, params: RLParams, *, reflector: bool = False, **changes: Any) -> RLJob:
    place.mkdir(parents=True, exist_ok=True)
    cfg = TransformersEngineConfig(engine="transformers", slots=8, context=128, prefill_rows=4, prefill_block=16)
    settings: dict[str, Any] = {
        "model_dir": model, "reflector_dir": model if reflector else None, "out_dir": place / "model",
        "checkpoints": place / "checkpoints", "env": Corridor(), "tasks": [0, 1, 2, 4], "params": params,
        "policy_engine": cfg, "reflector_engine": cfg, "seed": 5, "threads": 1,
    }  # fmt: skip
    return RLJob(**(settings | changes))


def params(**changes: Any) -> RLParams:
    return RLParams.model_validate(PARAMS | changes, strict=False)


def files(place: Path) -> dict[str, bytes]:
    """The files of a run that a stage publishes."""
    kept = [*(place / "model").iterdir(), place / "checkpoints" / "log.jsonl", place / "report.json"]
    return {file.name: file.read_bytes() for file in kept if file.exists()}


def log(job: RLJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in job.log.read_text().splitlines()]


@pytest.mark.parametrize(
    "changes", [{}, {"mask_invalid": True}, {"shrink_head": False}, {"temperature": 0.7}, {"top_k": 2}, {"top_p": 0.5}]
)
def test_log_probabilities_of_rollouts_equal_the_trainers(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = Run(make_job(folder, tmp_path, params(**changes), reflector=True), 1, None)
    for iteration in range(3):  # before any update, and after some
        with asyncio.Runner() as runner:
            row = run._iterate(iteration, runner)
            assert math.isfinite(row["loss"][0])
            played = runner.run(run._play(iteration + 10, run._schedule[0]))
        some = [step for one in played if one.trajectory for step in one.trajectory.decisions]
        micro = (tuple(range(len(some))),)
        with torch.no_grad():
            values, _ = run._models.policy.evaluate(micro, some, [example(one) for one in some])
        acted = torch.tensor([some[index].logprob for index in order(micro)])
        assert (values - acted).abs().max() < 1e-5


def test_a_policy_learns_to_walk_to_the_end(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder, tmp_path, params(max_steps=14, episodes=24, lr=1e-2, replay_episodes=6), tasks=[0, 1, 2])
    learn(job)
    rows = log(job)
    first, last = (sum(row["succ"] for row in part) / 3 for part in (rows[:3], rows[-3:]))
    assert first < 0.75
    assert last > 0.95
    assert rows[-1]["cost"] < rows[0]["cost"]
    assert weights_hash(load_causal_lm(job.out_dir)) != weights_hash(load_causal_lm(folder))


def test_a_token_budget_ends_a_run_after_the_iteration_that_exhausts_it(folder: Path, tmp_path: Path) -> None:
    """Its iterations are the first ones of a full run, and a resumed run adds none."""
    whole = learn(make_job(folder, tmp_path / "whole", params(save_steps=1), reflector=True))
    budget = whole.real_tokens // 2
    job = make_job(folder, tmp_path / "cut", params(save_steps=1, max_train_tokens=budget), reflector=True)
    report = learn(job)
    assert 0 < report.iterations < whole.iterations == 6
    assert budget <= report.real_tokens < whole.real_tokens
    assert log(job) == log(make_job(folder, tmp_path / "whole", params()))[: report.iterations]
    shorter = make_job(
        folder, tmp_path / "shorter", params(save_steps=1, max_steps=report.iterations - 1), reflector=True
    )
    assert learn(shorter).real_tokens < budget
    shutil.rmtree(job.out_dir)
    assert learn(job).resumed_at == report.iterations  # nothing is left to do


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "ppo", "critic": {"kind": "mlp", "every": 2}},
        {"critic": {"shared": True}, "gradient_accumulation_steps": 3},
        pytest.param({"lora": {"rank": 2, "alpha": 4}}, marks=pytest.mark.slow),
        {"shrink_head": False, "entropy_coef": 0.1, "replay_buffer": 0},
    ],
)
def test_every_kind_of_run_ends_with_a_loadable_model_and_a_complete_log(
    folder: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    job = make_job(folder, tmp_path, params(**changes), reflector=True)
    report = learn(job)
    assert load_causal_lm(full_weights(job.out_dir)).config.use_cache
    assert (job.out_dir / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    rows = log(job)
    assert [row["iter"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert report.episodes == 36
    assert report.decisions == sum(row["steps"] for row in rows)
    assert report.real_tokens == report.update_tokens + report.rollout_tokens // 3
    assert [row["step"] for row in log_curve(job.log)] == [1, 2, 3, 4, 5, 6]


def test_a_log_describes_steps_like_the_originals(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder, tmp_path, params(entropy_coef=0.1), reflector=True)
    learn(job)
    for row in log(job):
        assert [one["batch"] for one in row["log"]] == [0, 1]
        for one in row["log"]:
            last = one["detail"][-1]
            assert last["Q_value"] == pytest.approx(last["cost"] - 0.1 * last["entropy"])
            assert " # Analyze:\n" in last["prompt"]
            assert last["generation"] in ("0", "1", "2")


def test_the_frozen_reflector_is_hashed_and_a_change_is_detected(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = learn(make_job(folder, tmp_path / "a", params(max_steps=1), reflector=True))
    assert report.reflector_hash == weights_hash(load_causal_lm(folder))
    assert learn(make_job(folder, tmp_path / "b", params(max_steps=1))).reflector_hash is None
    iterate = Run._iterate

    def meddle(self: Run, iteration: int, runner: asyncio.Runner) -> dict[str, Any]:
        assert self._models.reflector is not None
        engine = self._models.reflector.engine
        assert isinstance(engine, RememberingEngine)
        assert isinstance(engine._inner, TransformersEngine)
        with torch.no_grad():
            engine._inner._decoder._weight.add_(1e-3)
        return iterate(self, iteration, runner)

    monkeypatch.setattr(Run, "_iterate", meddle)
    with pytest.raises(RuntimeError, match="frozen reflection model has changed"):
        learn(make_job(folder, tmp_path / "c", params(max_steps=1), reflector=True))


@pytest.mark.parametrize("launcher", [{"kind": "single"}, {"kind": "fork", "processes": 2}])
def test_an_endpoint_can_be_the_reflector_in_every_iteration_and_process(
    folder: Path, tmp_path: Path, launcher: dict[str, Any]
) -> None:
    with endpoint(then=lambda seen: answer(f"So many: {len(seen.body['messages'][-1]['content'])}")) as server:
        cfg = OpenAiEngineConfig(engine="openai", base_url=server.url, model="m", api_key_env=None, concurrency=3)
        job = make_job(folder, tmp_path, params(max_steps=3, launcher=launcher), reflector=True, reflector_engine=cfg)
        report = learn(job)
    assert (report.iterations, report.blocked, report.reflector_hash) == (3, 0, None)
    prompts = [step["prompt"] for row in log(job) for one in row["log"] for step in one["detail"]]
    assert prompts
    assert all(f"So many: {len(prompt.split('So many')[0])}" in prompt for prompt in prompts)


def test_exhausted_memory_of_a_gpu_names_the_params_that_need_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has 79.11 GiB.")

    monkeypatch.setattr(Policy, "evaluate", full)
    with refused_with(
        r"^rl: the GPU's memory is exhausted \(1\.50 GiB more were needed\); lower rl\.micro_batch_tokens \(8192\) or "
        r"the engines' slots, or set rl\.gradient_checkpointing: true\.$"
    ):
        learn(make_job(folder, tmp_path, params()))


def test_a_vllm_reflector_with_several_processes_is_refused(folder: Path, tmp_path: Path) -> None:
    many = params(launcher={"kind": "fork", "processes": 2})
    job = make_job(folder, tmp_path, many, reflector=True, reflector_engine=VllmEngineConfig(engine="vllm"))
    with pytest.raises(UserError, match=r"each of the 2 processes .* its own vLLM; set rl.launcher to"):
        learn(job)
    assert not job.checkpoints.exists()


def test_the_hash_of_a_folder_depends_on_the_bytes_of_its_files(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    assert files_hash(copy) == files_hash(folder)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    assert files_hash(copy) != files_hash(folder)


def test_an_iteration_trains_on_its_own_episodes_then_on_a_sample_of_the_successes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every episode has a number of its own, so that the environment draws labels and left-out entries anew."""
    calls: list[tuple[int, bool, Sequence[RLTrajectory]]] = []
    train = Learner.train

    def record(self: Learner, episodes: Sequence[RLTrajectory], *, iteration: int, fresh: bool) -> float | None:
        calls.append((iteration, fresh, episodes))
        return train(self, episodes, iteration=iteration, fresh=fresh)

    monkeypatch.setattr(Learner, "train", record)
    learn(make_job(folder, tmp_path, params(max_steps=3)))
    assert [call[:2] for call in calls] == [(i, fresh) for i in range(3) for fresh in (True, False)]
    numbers = [one.id.rpartition("-")[2] for _, fresh, episodes in calls if fresh for one in episodes]
    assert numbers == [str(number) for number in range(18)]
    played: list[RLTrajectory] = []
    for _, fresh, episodes in calls:
        played += episodes if fresh else []
        assert fresh or (len(episodes) == 3 and all(one.success and one in played for one in episodes))


def test_a_new_level_clears_the_replay_and_plays_its_own_tasks(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder, tmp_path, params(curriculum=True, max_steps=8), tasks=[0, 1, 3, 4])
    run = Run(job, 1, None)
    assert [phase.start for phase in run._schedule] == [0, 4]
    for iteration in range(8):
        with asyncio.Runner() as runner:
            run._iterate(iteration, runner)
        tasks = {int(one.id.split("-")[1]) for one in run._state.replay.kept}
        assert tasks <= ({0, 1} if iteration < 4 else {3, 4})
    assert log_levels(job) == []  # only ``go`` writes the log


@pytest.mark.parametrize("shared", [True, False])
def test_the_critic_reads_the_body_that_training_began_with_or_the_policys_own(
    folder: Path, tmp_path: Path, shared: bool
) -> None:
    run = Run(make_job(folder, tmp_path, params(critic={"shared": shared, "every": 100})), 1, None)
    with asyncio.Runner() as runner:
        run._iterate(0, runner)
        (one, *_) = [one.trajectory for one in runner.run(run._play(1, run._schedule[0])) if one.trajectory]
    some = one.decisions[:1]
    bodies = {True: run._models.policy, False: load_policy(run._job, run._models.ids)}
    hidden = {own: body.evaluate(((0,),), some, [example(some[0])])[1] for own, body in bodies.items()}
    assert (hidden[True] - hidden[False]).abs().max() > 1e-3  # the first update changed the policy
    run._learner.train([RLTrajectory(one.id, one.success, some)], iteration=1, fresh=True)
    assert run._learner._critic is not None
    read, _ = run._learner._critic.state(run._group)["seen"][0][-1]
    assert (read - hidden[shared]).abs().max() < 1e-5


def test_a_run_that_resumes_within_a_level_keeps_the_replay_of_that_level(folder: Path, tmp_path: Path) -> None:
    cfg, env = params(curriculum=True, mask_invalid=True, max_steps=3, save_steps=1), Corridor(max_turns=12)
    whole, cut = (make_job(folder, tmp_path / name, cfg, tasks=[0, 3], env=env) for name in ("whole", "cut"))
    learn(whole)

    def stop(done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(cut, stop)
    assert log_levels(cut) == ["near", "far"]
    assert log(cut)[-1]["loss"][1] is not None  # the level has had successes
    assert learn(cut).resumed_at == 2
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def log_levels(job: RLJob) -> list[str]:
    return [row["level"] for row in log(job)] if job.log.exists() else []


def test_the_log_contains_the_levels_and_too_few_iterations_are_refused(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder, tmp_path, params(curriculum=True, max_steps=4), tasks=[0, 1, 3, 4])
    learn(job)
    assert log_levels(job) == ["near", "near", "far", "far"]
    with pytest.raises(UserError, match="1 rounds are fewer than the 4 tasks"):
        learn(make_job(folder, tmp_path / "short", params(curriculum=True, max_steps=1)))
    assert not (tmp_path / "short" / "checkpoints").exists()
    assert len(phases(Corridor(), [0, 1], 1, curriculum=True)) == 1  # a level without tasks is skipped


def test_a_cost_that_is_not_a_number_ends_the_run_with_one_sentence(folder: Path, tmp_path: Path) -> None:
    with refused_with(r"corridor: action '1' in task \d returned cost nan"):
        learn(make_job(folder, tmp_path, params(), env=nan_cost()))


def test_a_final_weight_that_is_not_finite_ends_the_run_without_a_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterate = Run._iterate

    def overflow(self: Run, iteration: int, runner: asyncio.Runner) -> dict[str, Any]:
        row = iterate(self, iteration, runner)
        self._models.policy.trainable[-1].data.view(-1)[-1] = math.inf
        return row

    monkeypatch.setattr(Run, "_iterate", overflow)
    job = make_job(folder, tmp_path, params(max_steps=1))
    with refused_with(r"^rl: after the last round, model\..* holds numbers that are not finite"):
        learn(job)
    assert not job.out_dir.exists()


def test_fewer_slots_than_processes_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="slots is below the 9 processes"):
        learn(make_job(folder, tmp_path, params(launcher={"kind": "fork", "processes": 9})))


def test_a_checkpoint_of_another_environment_is_refused_and_descendants_inherit_the_mark(
    folder: Path, tmp_path: Path
) -> None:
    marked = make_tiny_model(tmp_path / "marked", hidden=32)
    mark_environment(marked, Corridor())
    check_environment(marked, Corridor())
    check_environment(folder, Corridor())  # a model without the mark
    job = make_job(marked, tmp_path / "run", params(max_steps=1))
    learn(job)
    other = Corridor()
    other.name = "taxi"
    with pytest.raises(UserError, match="was trained to act in corridor, not in taxi"):
        check_environment(job.out_dir, other)
    with pytest.raises(UserError, match="was trained with 3 labels that differ from the 2"):
        check_environment(job.out_dir, Corridor(labels=("0", "1")))
    wrong = {"": "is not JSON", "[]": "is not a JSON object", '{"env": "taxi", "labels": 5}': "lacks"}
    for content, said in wrong.items():
        (marked / "environment.json").write_text(content)
        with pytest.raises(UserError, match=rf"environment\.json {said}"):
            check_environment(marked, Corridor())


def test_only_the_newest_checkpoints_are_kept(folder: Path, tmp_path: Path) -> None:
    job = make_job(folder, tmp_path, params(max_steps=9, save_total_limit=2))
    learn(job)
    assert sorted(one.name for one in job.checkpoints.glob("checkpoint-*")) == ["checkpoint-6", "checkpoint-8"]


def go(place: Path, runs: list[dict[str, Any]]) -> list[list[Any]]:
    file = place / "runs.json"
    file.write_text(json.dumps(runs))
    subprocess.run([sys.executable, "-m", "tests.methods.reflect_rl.killed_learn", str(file)], check=True)
    results: list[list[Any]] = json.loads(file.with_suffix(".results").read_text())
    return results


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_moment_resumes_and_ends_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """The run with a token budget ends by it, after iteration 5; the tokens before its death count."""
    budget = learn(make_job(folder, tmp_path / "four", params(max_steps=4), reflector=True)).real_tokens + 1
    kinds: dict[str, dict[str, Any]] = {
        "pg": {**PARAMS, "gradient_accumulation_steps": 3, "curriculum": True},
        "ppo": {**PARAMS, "algorithm": "ppo", "critic": {"kind": "mlp", "every": 4, "shared": True}},
        "fork": {**PARAMS, "critic": {"every": 3}, "launcher": {"kind": "fork", "processes": 2}},
        "budget": {**PARAMS, "max_train_tokens": budget},
    }
    killed: list[tuple[dict[str, int], range]] = [
        ({"kill_at_step": 1}, range(1, 2)),
        ({"kill_at_seal": 2}, range(1, 3)),
        ({"kill_at_step": 5}, range(1, 6)),  # checkpoint 2 was never sealed, so this run starts over
        ({"kill_at_step": 6}, range(5, 7)),  # from checkpoint 4
        ({}, range(5, 7)),
    ]
    runs: list[dict[str, Any]] = []
    expected: list[list[Any]] = []
    for kind, settings in kinds.items():
        lives = killed if kind != "budget" else [({"kill_at_step": 3}, range(1, 4)), ({}, range(3, 6))]
        for name, each in (("whole", [({}, range(1, lives[-1][1].stop))]), ("killed", lives)):
            for death, steps in each:
                place = tmp_path / f"{kind}-{name}"
                runs.append({"model": str(folder), "out": str(place), "params": settings, **death})
                expected.append([9, None, list(steps)] if death else [0, 0, list(steps)])
    assert go(tmp_path, runs) == expected
    for kind in kinds:
        whole, resumed = files(tmp_path / f"{kind}-whole"), files(tmp_path / f"{kind}-killed")
        assert whole.keys() >= {"model.safetensors", "log.jsonl", "report.json"}
        assert whole == resumed


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [{"kind": "single"}, {"kind": "fork", "processes": 2}], ids=["single", "fork"])
def test_sigterm_saves_a_checkpoint_and_training_does_not_resume_from_a_damaged_one(
    folder: Path, tmp_path: Path, launcher: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cfg = params(max_steps=12, save_steps=100, launcher=launcher)
    unbroken, job = (make_job(folder, tmp_path / name, cfg) for name in ("unbroken", "asked"))
    learn(unbroken)
    steps = []
    for at in (2, 6):

        def sigterm(done: int, *_: Any, at: int = at) -> None:
            if done == at:
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(KeyboardInterrupt):
            learn(job, sigterm)
        newest = max(job.checkpoints.glob("checkpoint-*"), key=lambda one: int(one.name.removeprefix("checkpoint-")))
        steps.append(int(newest.name.removeprefix("checkpoint-")))
    assert 2 <= steps[0] < 6 <= steps[1] < 12
    weights = newest / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"~")
    job.log.write_bytes(job.log.read_bytes().replace(b'"iter"', b'"item"'))
    capsys.readouterr()
    assert learn(job).resumed_at == steps[0]
    said = capsys.readouterr().err
    assert f"{newest.name} was deleted, and training resumes from step {steps[0]}." in said
    assert f"rl: resuming at round {steps[0]} of 12\n" in said
    assert files(tmp_path / "asked") == files(tmp_path / "unbroken")
    assert job.log.read_bytes() == unbroken.log.read_bytes()  # the damaged lines were restored from the checkpoint


@pytest.mark.slow
def test_where_forks_are_not_possible_new_interpreters_learn_to_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS (``core.forking``)."""
    cfg = params(launcher={"kind": "fork", "processes": 2}, max_steps=2)
    for start in ("fork", "spawn"):
        monkeypatch.setattr(fork, "START", start)
        learn(make_job(folder, tmp_path / start, cfg))
    assert files(tmp_path / "spawn") == files(tmp_path / "fork")


def test_two_processes_give_the_same_episodes_losses_and_model_as_one(folder: Path, tmp_path: Path) -> None:
    jobs = [
        make_job(folder, tmp_path / launcher["kind"], params(launcher=launcher, critic={"every": 2}, max_steps=3))  # type: ignore[operator]
        for launcher in ({"kind": "single"}, {"kind": "fork", "processes": 2})
    ]
    for job in jobs:
        learn(job)
    one, two = (log(job) for job in jobs)
    for a, b in zip(one, two, strict=True):
        assert (a["succ"], a["steps"]) == (b["succ"], b["steps"])
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
    models = [load_causal_lm(job.out_dir).state_dict() for job in jobs]
    assert all(torch.allclose(value, models[1][name], atol=1e-4) for name, value in models[0].items())
