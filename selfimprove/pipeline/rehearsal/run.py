"""Runs a rehearsal: prepares its folder, serves the teacher, runs DVC and prints the report."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from graphlib import TopologicalSorter
from io import StringIO
from pathlib import Path
from types import FrameType

from filelock import FileLock
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError, for_terminal
from selfimprove.core.overlay import mappings
from selfimprove.core.publish import write_json
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.overall import known_seconds
from selfimprove.pipeline.parallel import needs_of
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.profiles import composed
from selfimprove.pipeline.rehearsal import folder as place
from selfimprove.pipeline.rehearsal import stand_in
from selfimprove.pipeline.rehearsal.rule import Here, Params, rehearsable, rehearsed, uses_gpu_packages
from selfimprove.pipeline.rehearsal.table import OUTCOME, outcome
from selfimprove.pipeline.rehearsal.teacher import KEY, serving
from selfimprove.pipeline.rehearsal.tell import tell
from selfimprove.pipeline.sections import check_schemas, spelled_out
from selfimprove.pipeline.warm import PARALLEL

REAL = stand_in.REAL
CPU_ENVIRONMENT = Path(".venvs/vllm/bin")
"""The environment with vLLM's build for CPUs and all other packages."""

MAIN_ENVIRONMENT = Path(".venv/bin")
AS_MAKE = {"PYTHONHASHSEED": "0", "DVC_NO_ANALYTICS": "1"}
"""What the Makefile sets for every command."""

LOG_LINES = 15
_RUNNING = re.compile(r"Running stage '([^']+)'")


def rehearse(profile: str, method: str, *, root: Path, quick: bool) -> int:
    """Rehearse a profile.

    Returns the exit code: 0 if the whole graph ran, 1 if a stage failed, 2 if a requirement is missing.

    Args:
        method: one method, or ``all`` that the profile runs on a GPU or from a pretrained model.
        root: the repository.
        quick: random weights, generated tasks and one iteration.

    Raises:
        UserError: the profile or method does not exist or needs no rehearsal, or the teacher did not start.
    """
    params = _composed(profile, root)
    methods = _chosen(profile, params, method)
    folder = root / place.HOME / (f"{profile}.quick" if quick else profile)
    said = f"rehearse: another rehearsal of {profile!r} is running here; wait for it, or stop it."
    with alone(folder / "lock", said):
        return _rehearse(profile, params, methods, folder, root, quick)


def _rehearse(profile: str, params: Params, methods: list[str], folder: Path, root: Path, quick: bool) -> int:
    """``rehearse`` in a folder that this process has locked."""
    gpus = _gpus()
    place.lay_out(folder, root)
    place.make_chats(folder)
    place.make_snippets(folder)
    port = place.port_of(folder)
    here = Here(
        gpus=gpus,
        models=_stand_ins(params, methods, folder, root, quick, gpus),
        teacher=f"http://127.0.0.1:{port}/v1",
        chats=place.CHATS,
        snippets=place.SNIPPETS,
        quick=quick,
    )
    own, replaced = rehearsed(params, methods, here)
    place.link_named_files(folder, root, own, methods)
    _write_params(folder, own)
    write_json(folder / "replaced.json", [asdict(one) for one in replaced])
    environment = _environment(params, methods, root, gpus)
    print(f"rehearsing {profile} ({', '.join(methods)}) in {folder.relative_to(root)}", flush=True)
    check = [_python(environment), "-m", "selfimprove.pipeline.check", *methods]  # as in `make repro`
    if subprocess.run(check, cwd=folder, env=environment, check=False).returncode:
        return 2
    with serving(folder, port, folder / "teacher.log", _python(environment)):
        code = repro(folder, goals := [f"{m}-report" for m in methods], environment)
    if code:
        return 1
    minutes = minutes_of(folder, goals)
    write_json(folder / OUTCOME, outcome(profile, methods, replaced, minutes, quick=quick, gpus=gpus).model_dump())
    print(tell(profile, methods, params, own, replaced, minutes, gpus))
    return 0


def _composed(profile: str, root: Path) -> Params:
    """The profile's params with the settings of every training written out.

    Raises:
        UserError: no such profile, or it is invalid. A missing model folder is accepted, because it will be replaced.
    """
    values = composed(profile, root / "profiles")
    checked = deepcopy(values)
    for _, base in mappings(checked.get("base")):
        if base.get("model"):
            base["revision"] = base.get("revision") or "any"  # as of a hub model, which need not be here
    check_schemas(checked, f"profiles/{profile}.yaml")
    return spelled_out(values)


def _chosen(profile: str, params: Params, method: str) -> list[str]:
    """The methods to rehearse.

    Raises:
        UserError: no such method, or the profile or this method of it needs no rehearsal.
    """
    found = rehearsable(params)
    if method not in ("all", *METHODS):
        raise UserError(f"METHOD={method!r} is not a method; choose all, {', '.join(METHODS)}.")
    if not found:
        raise UserError(
            f"profile {profile!r} trains only small models on the CPU and needs no rehearsal; "
            f"`make use PROFILE={profile} && make repro` runs it."
        )
    if method == "all":
        return found
    if method not in found:
        raise UserError(
            f"profile {profile!r} trains {method} as a small model on the CPU, which needs no rehearsal; "
            f"use METHOD={found[0]}."
        )
    return [method]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _stand_ins(params: Params, methods: list[str], folder: Path, root: Path, quick: bool, gpus: int) -> dict[str, str]:
    """Method -> the model that replaces its own. With GPUs, unless ``quick``, only ``REAL`` needs an entry (a link)."""
    asked = {method: params["base"][method]["model"] for method in methods}
    own = gpus and not quick
    return {m: _stand_in(name, folder, root, quick) for m, name in asked.items() if name and (name == REAL or not own)}


def _stand_in(model: str, folder: Path, root: Path, quick: bool) -> str:
    """The model that replaces ``model``, as a path relative to the rehearsal's folder."""
    kind = stand_in.family(model)
    if kind == "llama" and not quick:
        if not (root / REAL / "config.json").is_file():
            run_make(root, REAL)
        place.link(folder / REAL, root / REAL)
        return REAL
    name = f"models/small-{kind}"
    stand_in.build(kind, folder / name, root)
    return name


def run_make(root: Path, *goal: str) -> None:
    """Build a missing target with make. If several rehearsals need it, one builds it while the others wait.

    ``goal``: the target and its settings.

    Raises:
        UserError: make failed.
    """
    with FileLock(root / place.HOME / "make.lock"):
        failed = subprocess.run(["make", "--silent", *goal], cwd=root, check=False).returncode
    if failed:
        raise UserError(f"rehearse: `make {' '.join(goal)}`, which this rehearsal needs, failed; see the error above.")


def _write_params(folder: Path, params: Params) -> None:
    out = StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.dump(params, out)
    place.write_if_changed(folder / "params.yaml", out.getvalue())


def _environment(params: Params, methods: list[str], root: Path, gpus: int) -> dict[str, str]:
    """The stages' environment variables: a PATH to the Python with the profile's engines, dummy keys, and, without
    GPUs, an offline hub."""
    if gpus or not any(uses_gpu_packages(params[method]) for method in methods):
        bin_folder = root / MAIN_ENVIRONMENT
    else:
        run_make(root, "env-vllm")
        bin_folder = root / CPU_ENVIRONMENT
    text = str({method: params[method] for method in methods})
    if "'backend': 'xtuner'" in text:
        run_make(root, "env-xtuner", *(["XTUNER=gpu"] if gpus else []))  # the other build would replace it
    if "'backend': 'textworld'" in text:
        run_make(root, "env-alfworld")
    keys = {
        engine.get("api_key_env") or "OPENAI_API_KEY": KEY
        for method in methods
        for engine in params[method]["engines"].values()
        if engine["engine"] == "openai"
    }
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **keys, **({} if gpus else {"HF_HUB_OFFLINE": "1"})}


def repro(folder: Path, goals: list[str], environment: Mapping[str, str], jobs: int = 1) -> int:
    """Run DVC in a folder, printing one line per stage; its output goes to a log, the end of which is shown on failure.

    ``jobs``: number of parallel stages.
    """
    log = folder / "log.txt"
    how = ["dvc", "repro"] if jobs == 1 else [*PARALLEL, str(jobs)]
    command = [_python(environment), "-m", "selfimprove.pipeline.warm", *how, *goals]  # as in `make repro`
    stage = ""
    with (
        log.open("w", encoding="utf-8") as out,
        _ended_with_us(
            subprocess.Popen(
                command, cwd=folder, env={**environment, **AS_MAKE}, text=True, errors="replace",
                start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            out.flush()
            found = _RUNNING.search(line)
            if found is not None:
                stage = found[1]
                print(f"  {time.strftime('%H:%M:%S')}  {stage}", flush=True)
        code = process.wait()
    if code == 0:
        return 0
    end = "\n".join(f"  | {for_terminal(line)}" for line in log.read_text(encoding="utf-8").splitlines()[-LOG_LINES:])
    print(
        f"{end}\n{f'stage {stage}' if jobs == 1 and stage else 'the run'} failed; {log} contains the full output. "
        "Fix the cause and run the same command again: it resumes there.",
        file=sys.stderr,
    )
    return code


def _python(environment: Mapping[str, str]) -> str:
    return f"{environment['PATH'].split(os.pathsep)[0]}/python"


@contextmanager
def _ended_with_us(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Terminate the process's whole session if this process is interrupted or terminated."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def minutes_of(folder: Path, goals: list[str]) -> dict[str, float]:
    """Minutes of the last run, in this or an earlier call, of the goals and the stages that they need, these first."""
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        needs = needs_of(repo, [f"{folder / 'dvc.yaml'}:{goal}" for goal in goals])
    order = [stage.rpartition(":")[2] for stage in TopologicalSorter(needs).static_order()]
    seconds = known_seconds(folder)
    return {stage: round(seconds[stage] / 60, 2) for stage in order if stage in seconds}
