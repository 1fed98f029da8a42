"""Runs lm-evaluation-harness; needs its own environment (``make env-leaderboard``).

Slow to import, so imported only when an evaluation starts. No code of a data set or a model is executed: data sets are
plain files, and ``trust_remote_code`` is off.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selfimprove.apps.leaderboard import results as files
from selfimprove.apps.leaderboard.local_data import write_local_data
from selfimprove.apps.leaderboard.results import Results, Settings
from selfimprove.apps.leaderboard.suite import LOCAL, LeaderboardTask
from selfimprove.core.errors import UserError, first_line
from selfimprove.models.merging import full_weights

HERE = Path(__file__).parent
PROBE_SECONDS = 5.0


class DataMissingError(UserError):
    """A task's data set is not available locally and cannot be downloaded."""


def go_offline_unless_the_hub_answers() -> None:
    """Switch to offline mode without a network, so that cached data is found at once, not after minutes of retries.

    Raises:
        UserError: the environment's proxy or certificates cannot be used.
    """
    import httpx
    from huggingface_hub import constants

    from selfimprove.core.address import client_settings

    if not constants.HF_HUB_OFFLINE:
        try:
            with client_settings():
                httpx.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
        except httpx.HTTPError:
            constants.HF_HUB_OFFLINE = True
            os.environ["HF_HUB_OFFLINE"] = "1"


def check_hub(model: str) -> None:
    """Check that the hub, or its local cache, has a model of this name.

    Raises:
        UserError: there is no such model, or the user has no access to it.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    name, _, revision = model.partition("@")
    try:
        hf_hub_download(name, "config.json", revision=revision or None)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UserError(
            f"MODEL={model} is neither a folder nor a hub model that you can access ({first_line(error)}); name one "
            "that is there."
        ) from None


@dataclass(frozen=True)
class LoadedTasks:
    """The harness's index of task definitions, and its object for each task (for MMLU, the group of 57)."""

    manager: Any
    tasks: dict[str, Any]


def load_tasks(tasks: Sequence[LeaderboardTask]) -> LoadedTasks:
    """Read the tasks' definitions and data sets.

    Raises:
        DataMissingError: a data set is not available.
    """
    import lm_eval.tasks

    _be_quiet()
    theirs = Path(lm_eval.tasks.__file__).parent
    folders = {(HERE if task in LOCAL else theirs) / task.folder for task in tasks}
    # Only these folders: reading the harness's 14,000 definitions takes longer than evaluating a small model.
    manager = lm_eval.tasks.TaskManager(include_path=sorted(folders), include_defaults=False)
    loaded: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        data = write_local_data(Path(folder))
        for task in tasks:
            wanted: Any = task.name
            if task in LOCAL:
                kept = {"data_files": data[task.name], "cache_dir": folder, "keep_in_memory": True}
                wanted = {**manager.task_index[task.name].cfg, "dataset_kwargs": kept}
            try:
                found = manager.load([wanted])
            except (OSError, ValueError) as error:
                raise DataMissingError(
                    f"{task.name}: its data set is not cached here and can't be fetched ({first_line(error)}); "
                    "connect this machine to the hub, or ask for TASKS=local."
                ) from None
            loaded[task.name] = found.get("groups", {}).get(task.name) or found["tasks"][task.name]
    return LoadedTasks(manager, loaded)


def evaluate(
    model: str,
    tasks: Sequence[LeaderboardTask],
    loaded: LoadedTasks,
    *,
    device: str | None,
    dtype: str,
    batch_size: int,
    limit: int | None,
    folder: Path,
    say: Callable[[str], None],
) -> Results:
    """Evaluate a model on every task that is not in its results file yet; the file is written after each task.

    Results of other weights or settings, or of another model, in a file of this name are set aside (``set_aside``).

    Args:
        model: a folder, or a model of the hub as ``name`` or ``name@revision``.
        loaded: the result of ``load_tasks``.
        limit: number of questions per task; None for all.

    Raises:
        UserError: the model cannot be loaded, or the harness returned unexpected results.
    """
    from lm_eval import simple_evaluate

    lm, fingerprint = load_model(model, device=device, dtype=dtype, batch_size=batch_size)
    settings = Settings(
        harness=f"lm-eval {version('lm-eval')}",
        transformers=version("transformers"),
        dtype=str(lm.model.dtype).removeprefix("torch."),
        batch_size=batch_size,
        limit=limit,
    )
    key = files.key_of(fingerprint, settings)
    path = folder / f"{files.label(model)}.json"
    old = files.read(path) if path.is_file() else None
    done = old.tasks if old is not None and old.key == key else {}
    found = Results(model=model, key=key, settings=settings, tasks=done)
    for task in tasks:
        if task.name in found.tasks:
            say(f"{task.name}: already in {path}")
            continue
        answer = simple_evaluate(
            model=lm,
            tasks=[loaded.tasks[task.name]],
            task_manager=loaded.manager,
            num_fewshot=task.few_shot,
            batch_size=batch_size,
            limit=limit,
            log_samples=False,
        )
        if answer is None:  # only the first process of a launcher gets results
            continue
        metric = files.parse_metric(task, answer)
        found = found.model_copy(update={"tasks": {**found.tasks, task.name: metric}})
        if old is not None and old.key != key:
            kept = files.set_aside(old, folder)
            say(f"{path} had results of other weights or settings, which are kept in {kept.name}")
            old = None
        files.write(found, folder)
        say(f"{task.name}: {100 * metric.value:.2f} (n = {metric.n})")
    return found


def load_model(model: str, *, device: str | None, dtype: str, batch_size: int) -> tuple[Any, str]:
    """The harness's model, and an identifier of its weights: a hash of the folder's files, or the hub's commit.

    Raises:
        UserError: there is no such model, locally or on the hub, or it cannot be loaded.
    """
    import torch
    from lm_eval.models.huggingface import HFLM

    fingerprint = files.fingerprint(model)
    name, _, revision = (str(full_weights(Path(model))), "", "") if fingerprint else model.partition("@")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        lm = HFLM(
            pretrained=name,
            revision=revision or "main",
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            trust_remote_code=False,
        )
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(f"MODEL={model} can't be loaded ({first_line(error)}); name another model.") from None
    return lm, fingerprint or f"{name}@{getattr(lm.config, '_commit_hash', None) or revision}"


def _be_quiet() -> None:
    """Silence the harness, which logs every override and warns about settings that the leaderboard prescribes."""
    for name in ("lm_eval", "datasets", "transformers", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
