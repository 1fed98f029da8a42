"""Real training processes on CPU: forks, DDP, ZeRO-2 and ZeRO-3 give the losses of a single process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.cpp_extension import _get_build_directory
from torch.utils.file_baton import FileBaton
from transformers import TrainingArguments

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.pipeline.params import load_section
from selfimprove.training import fork
from selfimprove.training.config import FinetuneParams, LauncherConfig
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import RunJob, _arguments, check_hardware
from selfimprove.training.launch import finetune
from selfimprove.training.processes import (
    PARENT_SECONDS,
    compile_apart,
    free_port,
    load_encoded,
    save_encoded,
    worker_command,
)
from selfimprove.training.report import TrainReport
from selfimprove.training.trainer import WeightedTrainer
from selfimprove.training.zero import zero_config
from tests.support.repo_copy import ROOT
from tests.support.sentences import refused_with
from tests.support.tiny import weights

Maker = Callable[..., list[Example]]


def params(**launcher: Any) -> FinetuneParams:
    """Several micro-batches per step, and a last step with fewer examples than processes."""
    return FinetuneParams(
        batch_size=8,
        micro_batch_tokens=300,
        row_tokens=150,
        max_length=300,
        lr=1e-3,
        logging_steps=1,
        save_steps=2,
        weight_decay=0.01,
        launcher=LauncherConfig(**launcher),
    )


def run(tiny: Path, examples: list[Example], folder: Path, cfg: FinetuneParams, **more: Any) -> TrainReport:
    options = {"scratch": folder / "scratch", "seed": 3, "threads": 1, **more}
    return finetune(tiny, examples, folder / "model", cfg, **options)


@contextlib.contextmanager
def other_nodes(folder: Path, launcher: LauncherConfig) -> Iterator[None]:
    """Start the launcher's second node, if any, by hand and without standard input, as sbatch and ``ssh -n`` do."""
    if launcher.nodes == 1:
        yield
        return
    nodes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        while not (jobs := list(folder.glob("scratch/*/job.json"))):
            time.sleep(0.05)
        command = worker_command(jobs[0].absolute(), launcher)
        with (folder / "node1.log").open("wb") as log:
            nodes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    yield
    thread.join()
    assert nodes[0].wait(timeout=120) == 0, (folder / "node1.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "launcher",
    [
        {"kind": "fork", "processes": 2},
        {"kind": "torchrun", "processes": 2},
        {"kind": "deepspeed", "nodes": 2, "zero_stage": 2},
        {"kind": "deepspeed", "nodes": 2, "zero_stage": 3},
    ],
    ids=["fork", "ddp", "zero2-two-nodes", "zero3-two-nodes"],
)
def test_two_processes_give_the_losses_and_weights_of_one(
    tiny: Path, dialogues: Maker, tmp_path: Path, launcher: dict[str, Any]
) -> None:
    examples = dialogues(31)  # of which 6 are held out
    alone = run(tiny, examples, tmp_path / "alone", params().model_copy(update={"validation": 0.2}))
    if "nodes" in launcher:
        launcher = {**launcher, "rendezvous": f"127.0.0.1:{free_port()}"}
    seen: list[tuple[int, int]] = []
    cfg = params(**launcher).model_copy(update={"validation": 0.2})
    with other_nodes(tmp_path / "together", cfg.launcher):
        together = run(
            tiny, examples, tmp_path / "together", cfg, progress=lambda done, of, note, metrics: seen.append((done, of))
        )
    assert [loss for _, loss in together.loss] == pytest.approx([loss for _, loss in alone.loss], rel=1e-4)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    [measured], [expected] = together.evaluations, alone.evaluations
    assert measured == pytest.approx(expected, rel=1e-4)
    assert (together.held_out, expected["step"]) == (6, 4)
    assert (together.real_tokens, together.mean_weight) == (alone.real_tokens, alone.mean_weight)
    assert not list(tmp_path.glob("together/scratch/*/extensions-*")), (
        "no compiler is needed, and no run waits for another's"
    )
    one, two = weights(tmp_path / "alone" / "model"), weights(tmp_path / "together" / "model")
    start = weights(tiny)
    for name, tensor in one.items():
        # Adam's first steps follow the sign of tiny gradients: compare with the distance that the weights moved.
        assert (two[name] - tensor).norm() <= 0.01 * (tensor - start[name]).norm()
    assert {f.name for f in (tmp_path / "together" / "model").iterdir()} == {
        f.name for f in (tmp_path / "alone" / "model").iterdir()
    }


@pytest.mark.slow
def test_a_worker_s_error_message_reaches_the_user(tiny: Path, dialogues: Maker, tmp_path: Path) -> None:
    launcher = {"kind": "torchrun", "processes": 1}
    cfg = params(**launcher).model_copy(update={"tf32": True})
    with refused_with(r"torchrun: the training processes failed with exit code .*tf32"):
        run(tiny, dialogues(4), tmp_path, cfg)
    assert not (tmp_path / "model").exists()


FORK = {"kind": "fork", "processes": 2}


def test_an_error_in_a_forked_process_is_raised_in_the_caller_and_the_others_end(
    tiny: Path, dialogues: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = WeightedTrainer.micro_batches
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")

    def fail_with(failure: Callable[[], Any]) -> None:
        def micro_batches(self: WeightedTrainer, number: int) -> Any:
            if (self.args.process_index, number) == (1, 1):
                failure()
            return batches(self, number)

        monkeypatch.setattr(WeightedTrainer, "micro_batches", micro_batches)

    def throw(error: Exception) -> Callable[[], Any]:
        def failure() -> None:
            raise error

        return failure

    failures: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (throw(UserError("data/x.jsonl:3 is torn; fix it.")), UserError, r"^data/x.jsonl:3 is torn; fix it.$"),
        (throw(full), OSError, r"No space left on device: 'model.safetensors'"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), UserError, r"^fork: training process 1 was ended by SIGKILL"),
        (lambda: os._exit(7), UserError, r"^fork: training process 1 was ended with code 7"),
    ]
    others = set(psutil.Process().children())  # helpers of other tests of this worker
    for failure, kind, said in failures:
        fail_with(failure)
        with pytest.raises(kind, match=said):
            run(tiny, dialogues(25), tmp_path, params(**FORK))
        assert set(psutil.Process().children()) <= others
        assert not (tmp_path / "model").exists()
    monkeypatch.undo()
    assert run(tiny, dialogues(25), tmp_path, params(**FORK)).steps == 4


@pytest.mark.slow
def test_where_forks_are_not_possible_new_interpreters_train_to_the_same_bytes(
    tiny: Path, dialogues: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS (``core.forking``)."""
    forked = run(tiny, dialogues(25), tmp_path / "forked", params(**FORK))
    monkeypatch.setattr(fork, "START", "spawn")
    spawned = run(tiny, dialogues(25), tmp_path / "spawned", params(**FORK))
    assert spawned.loss == forked.loss
    model = "model/model.safetensors"
    assert (tmp_path / "spawned" / model).read_bytes() == (tmp_path / "forked" / model).read_bytes()
    with pytest.raises(UserError, match=r"launcher kind 'fork' sends the environment .*; set launcher: {kind: single}"):
        fork.run_forked(lambda _: None, processes=2, threads=1, folder=tmp_path)


def test_a_process_with_running_torch_threads_can_fork_processes_with_threads(
    tiny: Path, dialogues: Maker, tmp_path: Path
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        big = torch.rand(600, 600, requires_grad=True)
        (big @ big).exp().mean().backward()
        report = run(tiny, dialogues(8), tmp_path, params(**FORK), threads=4)
    finally:
        torch.set_num_threads(threads)
    assert report.steps == 1


def test_fork_is_refused_on_gpus_and_over_nodes() -> None:
    with refused_with(r"rise.*launcher kind 'fork' works only with device: cpu; use torchrun"):
        load_section({"rise": {"device": "cuda", "launcher": FORK}}, "rise", FinetuneParams, "params.yaml")
    with refused_with("kind 'fork' supports only one node"):
        load_section(
            {"rise": {"launcher": {**FORK, "nodes": 2, "rendezvous": "n0:1"}}}, "rise", FinetuneParams, "params.yaml"
        )


WATCHING = """
import sys, time
from selfimprove.training.processes import leave_with_launcher
leave_with_launcher()
print("@step [1, 1, \\"%d\\"]" % __import__("os").getpid(), flush=True)
time.sleep(600)
"""


def test_torchrun_s_workers_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    (tmp_path / "watching.py").write_text(WATCHING)
    stage = """
import os, sys
from pathlib import Path
from selfimprove.training.processes import watch
command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "watching.py"]
watch(command, {**os.environ, "PYTHONPATH": sys.argv[1]}, Path("log"), lambda done, of, pid: print(pid, flush=True))
"""
    launcher = subprocess.Popen(
        [sys.executable, "-c", stage, str(Path.cwd())],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    workers = [psutil.Process(int(launcher.stdout.readline())) for _ in range(2)]
    launcher.kill()
    launcher.wait()
    assert psutil.wait_procs(workers, timeout=30)[1] == []


def test_a_worker_without_a_launcher_runs_until_its_parent_has_ended() -> None:
    agent = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", agent, WATCHING], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline().split(b'"')[1]))
    with pytest.raises(psutil.TimeoutExpired):
        worker.wait(timeout=2 * PARENT_SECONDS)
    parent.kill()
    parent.wait()
    worker.wait(timeout=30)


def test_encoded_examples_reach_the_workers_unchanged(tmp_path: Path) -> None:
    examples = [EncodedExample([5, 6, 7], [0.0, 12.182493960703473, 0.1]), EncodedExample([1], [0.0])]
    save_encoded(tmp_path / "e.npz", examples)
    assert load_encoded(tmp_path / "e.npz") == examples


def test_several_nodes_use_the_rendezvous_and_a_single_node_a_local_address() -> None:
    many = worker_command(
        Path("/s/checkpoints-ab/job.json"),
        LauncherConfig(kind="deepspeed", processes=8, nodes=4, rendezvous="n0:29400"),
    )
    assert many[1:] == [
        "-m", "torch.distributed.run", "--nproc-per-node=8", "--nnodes=4", "--rdzv-backend=c10d",
        "--rdzv-endpoint=n0:29400", "--shutdown-timeout=60", "--rdzv-id=checkpoints-ab", "-m",
        "selfimprove.training.worker", "/s/checkpoints-ab/job.json",
    ]  # fmt: skip
    one = worker_command(Path("/s/c/job.json"), LauncherConfig(kind="torchrun", processes=2))
    assert "--nnodes=1" in one
    assert any(part.startswith("--rdzv-endpoint=127.0.0.1:") for part in one)
    assert "--local-addr=127.0.0.1" in one  # the machine's own name need not resolve


def test_a_process_trains_on_one_gpu_however_many_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the Trainer would split packed rows between GPUs."""
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 4))
    job = RunJob(
        model_dir=tmp_path,
        out_dir=tmp_path,
        checkpoints=tmp_path / "c",
        params=params(kind="single"),
        seed=1,
        threads=1,
    )
    assert _arguments(job, {})._n_gpu == 1


def test_zero_configuration_follows_the_params() -> None:
    three = zero_config(params(kind="deepspeed", processes=2, offload=True).model_copy(update={"dtype": "bfloat16"}))
    assert three["bf16"] == {"enabled": True}
    assert three["zero_optimization"]["stage"] == 3
    assert three["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert three["zero_optimization"]["offload_param"] == {"device": "cpu"}
    two = zero_config(params(kind="deepspeed", processes=2, zero_stage=2))
    assert two["zero_optimization"]["stage"] == 2
    assert not any("offload" in key or "stage3" in key for key in two["zero_optimization"])
    assert two["gradient_accumulation_steps"] == "auto"


def test_the_module_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, selfimprove.training.launch; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}).returncode == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "cuda"}, "finds no GPU"),
        ({"tf32": True}, "only GPUs support it"),
        ({"attention": "flash_attention_2"}, "needs device: cuda"),
    ],
)
def test_settings_that_this_machine_does_not_support_are_refused(settings: dict, said: str) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        settings = {"tf32": True}  # this machine has a GPU: test the other refusal
        said = "only GPUs support it"
    with refused_with(said):
        check_hardware(FinetuneParams(**settings))


def test_a_lock_that_torch_would_wait_for_is_deleted_only_if_it_is_older_than_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "elsewhere")
    compile_apart(tmp_path)
    folder = Path(_get_build_directory("an_extension", verbose=False))
    assert folder.is_relative_to(tmp_path)
    baton = FileBaton(str(folder / "lock"))
    assert baton.try_acquire()
    compile_apart(tmp_path)
    assert not FileBaton(str(folder / "lock")).try_acquire(), "a process of this run is compiling"
    os.utime(folder / "lock", (0, 0))
    compile_apart(tmp_path)
    assert FileBaton(str(folder / "lock")).try_acquire()
    assert (
        "an_extension/lock: deleted; it was left by a run that was killed during compilation."
        in capsys.readouterr().out
    )


EXTENSION = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_tiny() { return PyModule_Create(&module); }
"""
BUILD = """
import sys
from pathlib import Path
from selfimprove.training.processes import compile_apart
compile_apart(Path(sys.argv[1]))
from torch.utils.cpp_extension import load
print(load("tiny", [sys.argv[2]]).__name__)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
@pytest.mark.timeout(240)
def test_a_run_killed_while_torch_compiles_does_not_block_the_next_one(tmp_path: Path) -> None:
    """torch compiles DeepSpeed's extensions in the same way."""
    source = tmp_path / "tiny.cpp"
    source.write_text(EXTENSION)
    command = [sys.executable, "-c", BUILD, str(tmp_path), str(source)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as building:
        while not (locks := list(tmp_path.rglob("lock"))):
            assert building.poll() is None, "it ended without a lock"
            time.sleep(0.001)
        os.killpg(building.pid, signal.SIGKILL)
    assert locks[0].exists()
    time.sleep(1.1)  # start times of processes have a resolution of one second
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "tiny/lock: deleted; it was left by a run that was killed during compilation." in done.stdout
    assert done.stdout.endswith("tiny\n")
