"""lm-evaluation-harness itself, on a tiny random model (docs/spin.md, S41).

Runs in the optional environment .venvs/leaderboard (``make test-backends-leaderboard``). The six tasks are the
harness's own, with their own prompts, examples and metrics. Their data sets, which are only available from a hub, are
replaced by a few invented rows in the same format. The local tasks run unchanged.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.leaderboard import harness, results
from selfimprove.apps.leaderboard.results import Results
from selfimprove.apps.leaderboard.suite import LEADERBOARD, LOCAL, LeaderboardTask
from selfimprove.core.errors import UserError
from tests.support.tiny import make_tiny_model

pytestmark = pytest.mark.backend

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden=32, context=2048)


@pytest.fixture(scope="module")
def local() -> harness.LoadedTasks:
    return harness.load_tasks(LOCAL)


def evaluate(
    model: Path, tasks: tuple[LeaderboardTask, ...], loaded: harness.LoadedTasks, folder: Path, **more: Any
) -> Results:
    said: Callable[[str], None] = more.pop("say", print)
    settings: dict[str, Any] = {"device": "cpu", "dtype": "auto", "batch_size": 8, "limit": None} | more
    return harness.evaluate(str(model), tasks, loaded, folder=folder, say=said, **settings)


@pytest.fixture(scope="module")
def found(
    model_dir: Path, local: harness.LoadedTasks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Results, Path]:
    """Results of the local tasks on all their questions, and the folder that contains them."""
    folder = tmp_path_factory.mktemp("results")
    return evaluate(model_dir, LOCAL, local, folder), folder


def choice_rows(local: harness.LoadedTasks) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    data = local.tasks["local_choice"].dataset
    return list(data["train"]), list(data["test"])


def test_accuracy_on_local_choice_equals_that_of_a_plain_forward_pass(
    model_dir: Path, local: harness.LoadedTasks, found: tuple[Results, Path]
) -> None:
    """Our prompt, scored token by token with transformers; the answer likeliest per character of its text is chosen."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    train, test = choice_rows(local)
    shown = "".join(f"Question: {row['question']}\nAnswer: {row['choices'][row['label']]}\n\n" for row in train[:3])
    right = 0
    for row in test:
        prompt = tokenizer.encode(f"{shown}Question: {row['question']}\nAnswer:", add_special_tokens=False).ids
        scores = []
        for choice in row["choices"]:
            answer = tokenizer.encode(f" {choice}", add_special_tokens=False).ids
            with torch.inference_mode():
                logprobs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
            total = sum(float(logprobs[place, token]) for place, token in zip(places, answer, strict=True))
            scores.append(total / len(choice))
        right += scores.index(max(scores)) == row["label"]
    metric = found[0].tasks["local_choice"]
    assert metric.n == len(test) == 100
    assert metric.value == pytest.approx(right / len(test))
    assert 0 < metric.value < 1, "a random model is neither always right nor always wrong"


def test_the_results_file_contains_the_results(model_dir: Path, found: tuple[Results, Path]) -> None:
    [path] = found[1].glob("*.json")
    assert path.stem == results.label(str(model_dir))
    assert results.read(path) == found[0]
    assert found[0].settings.harness == "lm-eval 0.4.13"
    assert found[0].settings.dtype == "float32"
    assert found[0].mean is None


def test_finished_tasks_are_evaluated_again_only_with_other_settings(
    model_dir: Path, local: harness.LoadedTasks, found: tuple[Results, Path], tmp_path: Path
) -> None:
    [path] = found[1].glob("*.json")
    half = found[0].model_copy(update={"tasks": {"local_choice": found[0].tasks["local_choice"]}})
    results.write(half, tmp_path)
    said: list[str] = []
    again = evaluate(model_dir, LOCAL, local, tmp_path, say=said.append)
    assert said[0] == f"local_choice: already in {tmp_path / path.name}"
    assert said[1].startswith("local_problems: 0.00")
    assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "a stopped evaluation ends with the same bytes"
    said.clear()
    part = evaluate(model_dir, LOCAL[:1], local, tmp_path, say=said.append, limit=5)
    assert part.key != again.key
    assert list(part.tasks) == ["local_choice"], "metrics of other settings never stand in one file"
    assert part.tasks["local_choice"].n == 5
    kept = path.with_suffix(f".{again.key}.old").name
    assert said[0] == f"{tmp_path / path.name} had results of other weights or settings, which are kept in {kept}"
    assert (tmp_path / kept).read_bytes() == path.read_bytes()


def test_tasks_are_evaluated_again_after_the_weights_in_the_folder_have_changed(
    local: harness.LoadedTasks, tmp_path: Path
) -> None:
    said: list[str] = []

    def results_with(seed: int) -> Results:
        folder = make_tiny_model(tmp_path / "tiny", hidden=32, context=2048, seed=seed)
        return evaluate(folder, LOCAL[:1], local, tmp_path / "results", say=said.append, limit=2)

    first, repeated, changed = results_with(0), results_with(0), results_with(1)
    [path] = (tmp_path / "results").glob("*.json")
    assert repeated == first
    assert said[1] == f"local_choice: already in {path}"
    assert changed.settings == first.settings
    assert changed.key != first.key
    assert said[2].startswith(f"{path} had results of other weights")
    assert re.fullmatch(r"local_choice: [\d.]+ \(n = 2\)", said[3])
    assert results.read(path) == changed


class Solver:
    """Replaces the model and gives the right answers."""

    def __new__(cls, answers: dict[str, str]) -> Any:
        from lm_eval.api.model import LM

        class Inner(LM):
            def loglikelihood(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
                return [(0.0 if answers[self.asked(r)] == r.args[1].strip() else -50.0, False) for r in requests]

            def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
                raise NotImplementedError

            def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
                return [f" so it is.\n#### {answers[self.asked(r)]}" for r in requests]

            @staticmethod
            def asked(request: Any) -> str:
                return re.findall(r"Question: (.*)\nAnswer:", request.args[0])[-1]

        return Inner()


def test_right_answers_score_one(local: harness.LoadedTasks) -> None:
    from lm_eval import simple_evaluate

    _, test = choice_rows(local)
    solver = Solver({row["question"]: row["choices"][row["label"]] for row in test})
    for task in LOCAL:
        answer = simple_evaluate(
            model=solver,
            tasks=[local.tasks[task.name]],
            task_manager=local.manager,
            num_fewshot=task.few_shot,
            limit=30,
            log_samples=False,
        )
        assert results.parse_metric(task, answer).value == 1.0


def invented(path: str, name: str | None = None, **_: Any) -> Any:
    """A few rows in the format of each data set."""
    from datasets import Dataset, DatasetDict

    def rows(count: int) -> list[dict[str, Any]]:
        numbers = range(count)
        if path == "allenai/ai2_arc":
            return [{"id": f"{i}", "question": f"What is {i} + 1?", "answerKey": "AB"[i % 2],
                     "choices": {"text": ["one", "two"], "label": ["A", "B"]}} for i in numbers]  # fmt: skip
        if path == "Rowan/hellaswag":
            return [{"ind": i, "activity_label": "Counting", "ctx_a": f"Mia counts to {i}.", "ctx_b": "then she",
                     "ctx": "", "endings": ["stops.", "runs.", "goes on.", "[title] sits."], "label": str(i % 4)}
                    for i in numbers]  # fmt: skip
        if path == "cais/mmlu":
            return [{"question": f"{name}: {i} + 1?", "subject": name, "choices": ["1", "2", "3", "4"], "answer": i % 4}
                    for i in numbers]  # fmt: skip
        if path == "truthfulqa/truthful_qa":
            answers = {"choices": ["Yes.", "No.", "Never."], "labels": [1, 0, 0]}
            return [{"question": f"Is {i} a number?", "mc1_targets": answers, "mc2_targets": answers} for i in numbers]
        if path == "allenai/winogrande":
            return [{"sentence": f"Tom gave Mia {i} apples, so _ had more.", "option1": "Tom", "option2": "Mia",
                     "answer": str(1 + i % 2)} for i in numbers]  # fmt: skip
        assert path == "openai/gsm8k", path
        return [{"question": f"Mia has {i} apples, then one more. Now?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"}
                for i in numbers]  # fmt: skip

    splits = {"train": 30, "validation": 4, "dev": 5, "test": 2 if path == "cais/mmlu" else 4}
    return DatasetDict({split: Dataset.from_list(rows(count)) for split, count in splits.items()})


def test_the_six_leaderboard_tasks_run_with_their_own_examples_and_metrics(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", invented)
    loaded = harness.load_tasks(LEADERBOARD)
    found = evaluate(model_dir, LEADERBOARD, loaded, tmp_path)
    assert {name: metric.n for name, metric in found.tasks.items()} == {
        "arc_challenge": 4, "hellaswag": 4, "mmlu": 57 * 2, "truthfulqa_mc2": 4, "winogrande": 4, "gsm8k": 4,
    }  # fmt: skip
    assert {name: metric.few_shot for name, metric in found.tasks.items()} == {
        "arc_challenge": 25, "hellaswag": 10, "mmlu": 5, "truthfulqa_mc2": 0, "winogrande": 5, "gsm8k": 5,
    }  # fmt: skip
    assert len(found.tasks["mmlu"].versions) == 57
    assert found.mean == pytest.approx(sum(metric.value for metric in found.tasks.values()) / 6)
    [path] = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["mean"] == found.mean


def test_a_task_whose_data_set_is_unavailable_is_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach it\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match=r"gsm8k: its data set is not cached .*Couldn't reach it\).*TASKS=local"):
        harness.load_tasks([task for task in LEADERBOARD if task.name == "gsm8k"])


def test_a_broken_model_is_reported(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    with pytest.raises(UserError, match="can't be loaded"):
        harness.load_model(str(tmp_path), device="cpu", dtype="auto", batch_size=1)


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "selfimprove.apps.leaderboard", *arguments],
        cwd=folder, env={**os.environ, **OFFLINE}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_offline_the_local_tasks_are_evaluated_and_the_output_says_so(model_dir: Path, tmp_path: Path) -> None:
    done = command(tmp_path, str(model_dir), "--limit", "8")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("Using the local tasks instead of the leaderboard's six: arc_challenge: its data set")
    assert "no mean of six" in done.stdout
    [path] = (tmp_path / "results" / "leaderboard").iterdir()
    assert set(results.read(path).tasks) == {task.name for task in LOCAL}
    assert re.search(r"tiny\*\s+\d+\.\d\d±", done.stdout), done.stdout


def test_tasks_requested_by_name_are_not_replaced_by_local_tasks(model_dir: Path, tmp_path: Path) -> None:
    done = command(tmp_path, str(model_dir), "--tasks", "leaderboard")
    assert done.returncode == 2
    assert "its data set is not cached here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()
