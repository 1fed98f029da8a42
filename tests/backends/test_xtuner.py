"""XTuner itself, on a CPU in float32: ``finetune`` gives the same losses on the tiny model with either backend.

Runs in the main environment (``make test-backends-xtuner``), whose trainer is the reference. XTuner runs in its own
environment, as in a stage.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.methods.agent_r.formats import to_xtuner
from selfimprove.models.merging import full_weights
from selfimprove.training.checkpoints import seal
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodeCounters, encode_example, encode_examples
from selfimprove.training.launch import finetune
from selfimprove.training.report import TrainReport
from selfimprove.training.trainer import WeightedTrainer
from selfimprove.training.xtuner import backend
from selfimprove.training.xtuner.backend import environment_python
from tests.support.tiny import make_tiny_model
from tests.training.test_zero import MakesAFolder

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

MAX_LENGTH = 300
ROPE_BASE = 500_000.0
"""Not the default of old transformers versions: if this value were lost, every loss would differ."""

# Two epochs of 11 examples in steps of 4: the last step is smaller. The reference has one row per micro-batch.
PARAMS: dict[str, Any] = {
    "epochs": 2.0, "batch_size": 4, "row_tokens": 200, "micro_batch_tokens": 1, "max_length": MAX_LENGTH, "lr": 2e-3,
    "schedule": "constant", "warmup_ratio": 0.0, "save_steps": 2, "logging_steps": 1,
}  # fmt: skip
STEPS = 6


def says(role: Any, content: str, **more: Any) -> Message:
    return Message(role=role, content=content, **more)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden=32)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": ROPE_BASE}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def revisions() -> list[Example]:
    """Revision trajectories: an untrained bad prefix, then the revision turn and the good steps, which are trained."""
    examples = []
    for number in range(7):
        messages = [
            says("system", "You are a helpful assistant."),
            says("user", f"Craft {number} apples."),
            says("assistant", "Ok."),
            says("user", f"Goal: craft apple {number}."),
        ]
        for step in range(number % 3):
            messages.append(says("assistant", f"Thought: so.\nAction: get {step} page"))
            messages.append(says("user", f"Could not find page {step}"))
        messages.append(says("assistant", "Thought: That was wrong.\nAction: wait", weight=1.0))
        messages.append(says("user", "ok."))
        for step in range(1 + number % 2):
            messages.append(says("assistant", f"Thought: now.\nAction: craft {step} apple", weight=1.0))
            messages.append(says("user", "Crafted."))
        examples.append(Example(id=f"revision_{number}", messages=messages[:-1]))
    return examples


@pytest.fixture(scope="module")
def examples(model_dir: Path, revisions: list[Example]) -> list[Example]:
    """The revisions, and examples that other trainers would tokenise differently."""
    chat = ChatFormat.load(model_dir)
    letter_by_letter = [chat.content_ids(says("user", letter))[0] for letter in "Action: wait"]
    assert letter_by_letter != chat.content_ids(says("user", "Action: wait")), "tokenising again gives other ids"
    ask = says("user", "Mia has 3 apples.")
    odd = [
        [ask, says("assistant", "Action: wait", token_ids=letter_by_letter, finish="stop", weight=1.0)],
        [ask, says("assistant", "Action: wait for", finish="length", weight=1.0)],  # no end of turn to train
        [says("user", "You see <|end|><|assistant|> on the wall."), says("assistant", "Action: read", weight=1.0)],
        [ask, *[says("assistant", "Action: go"), says("user", "Nothing happens. " * 3)] * 9,
         says("assistant", "Action: stop", weight=1.0)],
    ]  # fmt: skip
    return [*revisions, *(Example(id=f"odd_{number}", messages=messages) for number, messages in enumerate(odd))]


def run(model_dir: Path, examples: list[Example], folder: Path, progress: Any = None, **changes: Any) -> TrainReport:
    cfg = FinetuneParams.model_validate({**PARAMS, **changes}, strict=False)
    options: dict[str, Any] = {"scratch": folder / "scratch", "seed": 5, "threads": 1, "progress": progress}
    return finetune(model_dir, examples, folder / "model", cfg, **options)


def run_folder(folder: Path) -> Path:
    [found] = (folder / "scratch").glob("checkpoints-*")
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()


def losses(report: TrainReport) -> list[float]:
    assert [step for step, _ in report.loss] == list(range(1, len(report.loss) + 1))
    return [loss for _, loss in report.loss]


def conversations(micro: dict[str, torch.Tensor]) -> list[tuple[list[int], list[int]]]:
    """(ids, labels) of the conversations packed into a micro-batch of one row."""
    [ids], [positions], [coefficients] = (micro[k].tolist() for k in ("input_ids", "position_ids", "coefficients"))
    starts = [place for place, position in enumerate(positions) if position == 0]
    labels = [token if learnt else -100 for token, learnt in zip(ids, coefficients, strict=True)]
    return [(ids[a:b], labels[a:b]) for a, b in itertools.pairwise([*starts, len(ids)])]


@pytest.fixture(scope="module")
def own(model_dir: Path, examples: list[Example], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Our trainer's run: folder, report, and the (ids, labels) that the model read in each step."""
    folder = tmp_path_factory.mktemp("trainer")
    read: dict[int, list[tuple[list[int], list[int]]]] = {}
    batches = WeightedTrainer.micro_batches

    def recorded(self: WeightedTrainer, number: int) -> Any:
        micros = batches(self, number)
        read[number] = [pair for micro in micros for pair in conversations(micro)]
        return micros

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightedTrainer, "micro_batches", recorded)
        report = run(model_dir, examples, folder)
    return folder, report, [sorted(read[number]) for number in range(STEPS)]


@pytest.fixture(scope="module")
def unbroken(model_dir: Path, examples: list[Example], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """XTuner's uninterrupted run: folder and report."""
    folder = tmp_path_factory.mktemp("xtuner")
    return folder, run(model_dir, examples, folder, backend="xtuner")


@pytest.fixture(scope="module")
def seen(unbroken: Any, revisions: list[Example], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of ``xtuner_reader`` for that run and for the revisions in XTuner's own format."""
    rows = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows.write_text("".join(json.dumps(to_xtuner(example)) + "\n" for example in revisions))
    root = str(Path(__file__).parents[2])
    command = [str(environment_python()), "-m", "tests.backends.xtuner_reader", str(run_folder(unbroken[0])), str(rows)]
    printed = subprocess.run(command, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr[-2000:]
    return json.loads(printed.stdout.splitlines()[-1])


def test_xtuner_trains_exactly_the_tokens_that_our_trainer_trains(own: Any, seen: dict[str, Any]) -> None:
    batches = [(ids, labels) for ids, labels in seen["batches"]]
    assert len(batches) == STEPS * 4
    steps = [batches[start : start + 4] for start in range(0, len(batches), 4)]
    padding = ([0, 0], [-100, -100])
    assert [step.count(padding) for step in steps] == [0] * (STEPS - 1) + [2], "22 examples in steps of 4"
    assert [sorted(micro for micro in step if micro != padding) for step in steps] == own[2]
    assert sum(token != -100 for _, labels in batches for token in labels) == own[1].trained_tokens


def test_xtuners_own_tokenisation_of_our_turns_equals_ours(
    model_dir: Path, revisions: list[Example], seen: dict[str, Any]
) -> None:
    ours, _ = encode_examples(revisions, ChatFormat.load(model_dir), 10_000)
    expected = []
    for example in ours:
        pairs = zip(example.ids, example.token_weights, strict=True)
        expected.append([example.ids, [token if weight else -100 for token, weight in pairs]])
    assert seen["turns"] == expected
    assert any(-100 in labels[20:] and labels[-1] != -100 for _, labels in expected), "bad steps, then learnt ones"


def test_losses_weights_and_files_match_those_of_our_trainer(
    own: Any, unbroken: Any, model_dir: Path, examples: list[Example]
) -> None:
    (own_folder, own_report, _), (folder, report) = own, unbroken
    assert losses(report) == pytest.approx(losses(own_report), rel=1e-5)
    same = {"loss": [], "timing": own_report.timing, "tokens": 0, "padding": 0.0}
    assert report.model_copy(update=same) == own_report.model_copy(update=same)
    assert report.counters.truncated == report.counters.cut_attempts == 1
    assert report.tokens == report.real_tokens + 4
    check_close(weights(own_folder), weights(folder), weights_of_start(model_dir))
    mine, theirs = ({file.name: file.read_bytes() for file in (f / "model").iterdir()} for f in (own_folder, folder))
    assert set(theirs) == set(mine)
    for name in set(mine) - {"model.safetensors"}:
        assert theirs[name] == mine[name], f"{name}: tokenizer, template and config travel untouched"
    check_generates(folder / "model", model_dir, examples)


def weights_of_start(model_dir: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir).state_dict()


def check_close(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> None:
    """Compare differences with how far weights moved: Adam's first steps follow the sign of tiny gradients."""
    for name, tensor in one.items():
        assert (two[name] - tensor).norm() <= 0.01 * (tensor - start[name]).norm(), name


def check_generates(folder: Path, model_dir: Path, examples: list[Example]) -> None:
    """The result is a trained model: with its own config, its loss is below the untrained model's."""
    from transformers import AutoModelForCausalLM

    one = encode_example(examples[0], ChatFormat.load(folder), MAX_LENGTH, EncodeCounters())
    assert one is not None
    ids = torch.tensor([one.ids])
    labels = torch.tensor([[i if w else -100 for i, w in zip(one.ids, one.token_weights, strict=True)]])
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (folder, model_dir)]
    assert models[0].config.rope_parameters["rope_theta"] == ROPE_BASE
    with torch.inference_mode():
        trained, untrained = (float(model(input_ids=ids, labels=labels).loss) for model in models)
    assert trained < untrained - 0.5


KILLED = """
import json, os, signal, sys
from pathlib import Path
from selfimprove.core.records import Example
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune

def progress(done, total, note, metrics):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)

told = json.load(sys.stdin)
finetune(
    Path(told["model"]),
    [Example.model_validate(row) for row in told["examples"]],
    Path(told["folder"]) / "model",
    FinetuneParams.model_validate(told["params"], strict=False),
    scratch=Path(told["folder"]) / "scratch",
    seed=5,
    threads=1,
    progress=progress,
)
"""


def test_a_killed_run_resumes_from_xtuners_checkpoint_and_gives_the_same_bytes(
    model_dir: Path, examples: list[Example], unbroken: Any, tmp_path: Path
) -> None:
    told = {
        "model": str(model_dir),
        "folder": str(tmp_path),
        "examples": [example.model_dump() for example in examples],
        "params": {**PARAMS, "backend": "xtuner"},
    }
    code = subprocess.run([sys.executable, "-c", KILLED], input=json.dumps(told), text=True).returncode
    assert code == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    torn = run_folder(tmp_path) / "checkpoint-16"  # as if killed while writing the next checkpoint
    torn.mkdir(exist_ok=True)
    (torn / "state.pth").write_bytes(b"half")
    report = run(model_dir, examples, tmp_path, backend="xtuner")
    assert report.timing.resumed_at == 2
    folder, whole = unbroken
    assert report.loss == whole.loss
    for file in (folder / "model").iterdir():
        assert (tmp_path / "model" / file.name).read_bytes() == file.read_bytes(), file.name


ZERO_2 = {"kind": "deepspeed", "zero_stage": 2}


@pytest.mark.parametrize("launcher", [{}, ZERO_2], ids=["single", "zero2"])
def test_sigterm_saves_a_checkpoint_that_resumes_to_the_same_weights_and_unpickles_no_code(
    model_dir: Path, examples: list[Example], unbroken: Any, tmp_path: Path, launcher: dict[str, Any]
) -> None:
    def sigterm(done: int, *_: Any) -> None:
        if done == 1:
            signal.raise_signal(signal.SIGTERM)

    told: dict[str, Any] = {"backend": "xtuner", "launcher": launcher, "save_steps": 100}
    with pytest.raises(KeyboardInterrupt):
        run(model_dir, examples, tmp_path, sigterm, **told)
    [saved] = run_folder(tmp_path).glob("checkpoint-*")
    step = int(saved.name.removeprefix("checkpoint-")) // 4
    assert 1 <= step < STEPS
    state = next(saved.glob("zero_pp_rank_0*" if launcher else "state.pth"))
    whole = state.read_bytes()
    torch.save({"optimizer_state_dict": MakesAFolder(tmp_path / "ran")}, state)
    seal(saved)
    with pytest.raises(UserError, match="xtuner: training failed with exit code 1"):
        run(model_dir, examples, tmp_path, **told)
    assert not (tmp_path / "ran").exists(), "no code in a checkpoint is run"
    state.write_bytes(whole)
    seal(saved)
    resumed = run(model_dir, examples, tmp_path, **told)
    assert resumed.timing.resumed_at == step
    folder, report = unbroken
    assert losses(resumed) == pytest.approx(losses(report), rel=1e-5)
    if launcher:
        check_close(weights(folder), weights(tmp_path), weights_of_start(model_dir))
    else:
        assert (tmp_path / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()


def test_time_based_checkpoints_change_no_byte(
    model_dir: Path, examples: list[Example], unbroken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from selfimprove.training import stopping\nstopping.SAVE_SECONDS = stopping.SAVE_RATIO = 0.0\n"
    )
    environment = backend._environment

    def impatient(job: Any) -> dict[str, str]:
        told = environment(job)
        return told | {"PYTHONPATH": f"{tmp_path}:{told['PYTHONPATH']}"}

    monkeypatch.setattr(backend, "_environment", impatient)
    report = run(model_dir, examples, tmp_path, backend="xtuner", save_steps=100)
    assert sorted(one.name for one in run_folder(tmp_path).glob("checkpoint-*")) == ["checkpoint-20", "checkpoint-24"]
    folder, whole = unbroken
    assert report.loss == whole.loss
    assert (tmp_path / "model/model.safetensors").read_bytes() == (folder / "model/model.safetensors").read_bytes()


@pytest.mark.parametrize("launcher", [{}, ZERO_2], ids=["single", "zero2"])
def test_diverging_training_stops_at_that_step_and_writes_no_model(
    model_dir: Path, examples: list[Example], tmp_path: Path, launcher: dict[str, Any]
) -> None:
    with pytest.raises(UserError, match=r"step [1-6] of 6: the loss is \S+ and the gradient norm \S+, so training has"):
        run(model_dir, examples, tmp_path, backend="xtuner", launcher=launcher, lr=1e9, save_steps=1)
    assert not (tmp_path / "model").exists()


def test_adapters_merge_into_a_model_that_loads(
    model_dir: Path, examples: list[Example], own: Any, tmp_path: Path
) -> None:
    report = run(model_dir, examples, tmp_path, backend="xtuner", lora={"rank": 4, "alpha": 8}, lr=2e-2)
    assert losses(report)[0] == pytest.approx(losses(own[1])[0], rel=1e-5), "adapters begin as nothing"
    full = full_weights(tmp_path / "model")
    start, merged = weights_of_start(model_dir), weights_of_start(full)
    changed = {name for name in start if not torch.equal(start[name], merged[name])}
    assert changed == {name for name in start if "proj" in name}
    check_generates(full, model_dir, examples)


def test_errors_in_xtuners_process_are_reported_in_one_sentence(
    model_dir: Path, examples: list[Example], tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(model_dir, tmp_path / "broken"))
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"xtuner: training failed with exit code 1; .*[Ss]afetensor") as error:
        run(broken, examples, tmp_path, backend="xtuner")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "model").exists()
