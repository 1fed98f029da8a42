"""``make sweep GRID="key=a,b key=c,d"``: runs a DVC experiment for each point of a grid, several in parallel.

Each point runs in its own folder, ``.scratch/sweep/<name>``: a clone of the repository, including uncommitted edits,
that shares DVC's cache. There the pipeline runs as under ``make repro``, is saved as an experiment of the last commit
and fetched back. When a killed sweep is restarted, it skips existing experiments and resumes within the interrupted
stage; DVC's own queue would restart that stage from scratch. Points share the results of identical stages through the
run cache.

With GPUs, each concurrent run has its own share of the visible ones, or shares one with others if there are fewer.
"""

import itertools
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import typer
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.core import cli
from selfimprove.core.errors import UserError
from selfimprove.core.git import check_commit, identity
from selfimprove.core.overlay import mappings
from selfimprove.core.publish import write_text
from selfimprove.core.yaml import DEEPEST, read_yaml
from selfimprove.pipeline.check import params_faults
from selfimprove.pipeline.jobs import asked, gpu_shares
from selfimprove.pipeline.layout import rewritten
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, named_paths, short
from selfimprove.pipeline.recorded import LOCK
from selfimprove.pipeline.stage import content_digest
from selfimprove.pipeline.verify import KEPT_BY_GIT, outputs

HOME = Path(".scratch/sweep")
MOST_POINTS = 1000
NAME_LENGTH = 60
TOLD = 3
"""Number of lines shown from the end of a failed run's log."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class GridPoint:
    """One experiment: its name, its settings, and the text of its params.yaml."""

    name: str
    settings: Mapping[str, Any]
    params: str


@app.command()
def main(
    grid: Annotated[str, typer.Argument(help="key=value,value …, such as rise.rows.iter2.train.lr=1e-3,2e-3")],
    jobs: Annotated[str, typer.Option(help="number of runs at once")] = "1",
    method: Annotated[str, typer.Option(help="one method, or all")] = "all",
) -> None:
    """Run all points of the grid. Exit code 2: a key or value is invalid (nothing was started), or a run failed."""
    settings = parse_grid(grid)
    text = PARAMS_FILE.read_text(encoding="utf-8") if PARAMS_FILE.is_file() else ""
    values = [with_settings(read_yaml(PARAMS_FILE), one) for one in settings]
    faults = dict.fromkeys(fault for value in values for fault in params_faults(value))
    if faults:
        raise UserError("\n".join([*faults, "no experiment was started."]))
    author = identity()
    shares = [share | author for share in gpu_shares(asked(jobs), values)]
    with alone(HOME / "lock", "another sweep is running in this folder; wait for it, or stop it."):
        state = _state(method)
        points = [
            GridPoint(_name(one, state + _inputs(value)), one, rewritten(text, value))
            for one, value in zip(settings, values, strict=True)
        ]
        _tell_others(points)
        _work_off(points, method, shares)


def parse_grid(text: str) -> list[dict[str, Any]]:
    """The settings of each point, in the order of nested loops over the keys.

    Raises:
        UserError: not of the form key=value,value; a repeated key or value; a value that is not YAML; too many points.
    """
    axes: dict[str, list[Any]] = {}
    for word in text.split():
        key, equals, listed = word.partition("=")
        # A comma inside brackets belongs to a value.
        raw = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|[^,])+", listed)
        if not equals or not key or not raw or listed.startswith(",") or listed.endswith(",") or ",," in listed:
            raise UserError(f"GRID: {short(word)} is not key=value,value; write for example run.seed=17,18.")
        if key.count(".") > DEEPEST:
            raise UserError(f"GRID: the key {key[:NAME_LENGTH]}… has more than {DEEPEST} parts; correct it.")
        if key in axes:
            raise UserError(f"GRID: {key} occurs twice; give all of its values after one equals sign.")
        try:
            axes[key] = [YAML(typ="safe", pure=True).load(value) for value in raw]
            written = {repr(value) for value in axes[key]}
        except (YAMLError, ValueError, LookupError, RecursionError):  # an impossible date; thousands of digits
            raise UserError(f"GRID: a value in {short(word)} is not valid YAML; correct it.") from None
        if len(written) < len(raw):
            raise UserError(f"GRID: {key} has the same value twice; remove one.")
    if not axes:
        raise UserError(
            'GRID is empty; write for example: make sweep GRID="rise.rows.iter2.train.lr=1e-3,2e-3 run.seed=17,18".'
        )
    if math.prod(map(len, axes.values())) > MOST_POINTS:
        raise UserError(f"GRID has more than {MOST_POINTS} points, the most that one sweep runs; split it.")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def with_settings(values: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the settings to params in place, without checking that their keys exist (the schemas do).

    Raises:
        UserError: a key's path passes through a value that is not a mapping.
    """
    for key, value in settings.items():
        node: Any = values
        *parents, last = key.split(".")
        for place, part in enumerate(parents):
            node = node.setdefault(_key(node, part), {})
            if not isinstance(node, dict):
                raise UserError(f"GRID: {'.'.join(parents[: place + 1])} has no keys below it, so {key} cannot be set.")
        node[_key(node, last)] = value
    return values


def _key(node: Mapping[Any, Any], part: str) -> Any:
    """The key of the mapping that is written like ``part``, such as a number; ``part`` itself if there is none."""
    return next((key for key in node if str(key) == part), part)


class _Runs:
    """Executes the runs. A SIGTERM or Ctrl-C is forwarded to those in progress, which save their work and exit."""

    def __init__(self, method: str, shares: Sequence[dict[str, str]]) -> None:
        self.stopped = False
        self._methods = list(METHODS) if method == "all" else [method]
        self._goal = "report" if method == "all" else f"{method}-report"
        self._at_work: set[subprocess.Popen[bytes]] = set()
        self._free: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        for share in shares:
            self._free.put(share)

    def stop(self, *_: object) -> None:
        self.stopped = True
        for process in list(self._at_work):
            process.terminate()

    def one(self, point: GridPoint) -> str | None:
        """Run one point; returns an error message if it failed."""
        share = self._free.get()
        try:
            return None if self.stopped else self._run(point, share)
        except UserError as error:
            return f"{point.name}: {error}"
        finally:
            self._free.put(share)

    def _run(self, point: GridPoint, share: Mapping[str, str]) -> str | None:
        began = time.monotonic()
        said = ", ".join(f"{key}={value}" for key, value in point.settings.items())
        folder = _prepare(point)
        log = Path(f"{folder}.log")
        print(f"{point.name}: {said}; log: {log}", flush=True)
        saved = any(ref.endswith(f"/{point.name}") for ref in _experiments(folder))  # by an earlier, killed sweep
        for command in (
            [sys.executable, "-m", "selfimprove.pipeline.check", *self._methods],
            [sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro", self._goal],
            ["dvc", "exp", "run", "--name", point.name, self._goal],  # no stage has to run
        )[: 0 if saved else None]:
            code = self._call(command, folder, log, share)
            if self.stopped:
                return None
            if code:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                shown = "\n".join(f"    {line}" for line in lines[-TOLD:])
                return f"{point.name} ({said}) ended with exit code {code}; {log} ends with:\n{shown}"
        ref = next(one for one in _experiments(folder) if one.endswith(f"/{point.name}"))
        _git("fetch", "--quiet", str(folder), f"+{ref}:{ref}")
        shutil.rmtree(folder)
        print(f"{point.name}: done in {time.monotonic() - began:.0f} s", flush=True)
        return None

    def _call(self, command: Sequence[str], folder: Path, log: Path, share: Mapping[str, str]) -> int:
        with (
            log.open("ab") as out,
            subprocess.Popen(
                command, cwd=folder, env={**os.environ, **share}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            ) as process,
        ):
            self._at_work.add(process)
            if self.stopped:
                process.terminate()
            code = process.wait()
            self._at_work.discard(process)
        return code


def _work_off(points: Sequence[GridPoint], method: str, shares: Sequence[dict[str, str]]) -> None:
    there = {ref.rsplit("/", 1)[1] for ref in _experiments(Path())}
    todo = [point for point in points if point.name not in there]
    print(f"{len(points)} experiments: {len(points) - len(todo)} done, {len(todo)} to run, {len(shares)} at once.")
    runs = _Runs(method, shares)
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, runs.stop)
    with ThreadPoolExecutor(len(shares)) as pool:
        failed = [said for said in pool.map(runs.one, todo) if said]
    if runs.stopped:
        print("stopped; run the same command again to resume.", file=sys.stderr)
        sys.exit(cli.INTERRUPTED)
    if failed:
        raise UserError(
            "\n".join([*failed, "run the same command again to retry these; finished experiments are kept."])
        )
    print("`make compare` shows them next to the last commit.")


def _prepare(point: GridPoint) -> Path:
    """The point's folder, newly created or left by an earlier sweep."""
    folder = HOME / point.name
    if folder.is_dir():
        return folder
    part = HOME / f".part-{point.name}"
    shutil.rmtree(part, ignore_errors=True)
    _git("clone", "--quiet", "--shared", "--no-checkout", ".", str(part))
    _git("checkout", "--quiet", "--detach", _git("rev-parse", "HEAD").strip(), folder=part)
    for name in _edited():
        source, target = Path(name), part / name
        if source.is_file() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        else:
            target.unlink(missing_ok=True)
    # Link git-ignored paths that the params name (such as a downloaded model) and the Python environments.
    made = {out.path for out in outputs()} if LOCK.is_file() else set[Path]()
    values = YAML(typ="safe", pure=True).load(point.params)
    named = {path for path in named_paths(values, every=True) if not path.is_absolute()}
    # All points share the cache of paid search results, also if the first of them creates it.
    caches = [node["cache"] for _, node in mappings(values) if isinstance(node.get("cache"), str)]
    paid = {Path(one) for one in caches if not Path(one).is_absolute()}
    for path in paid:
        path.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted({*named, *paid, Path(".venv"), Path(".venvs")} - made):
        if (path.exists() or path in paid) and not (part / path).exists():
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).unlink(missing_ok=True)  # the copy of a relative link leads nowhere
            (part / path).symlink_to(path.resolve())
            info = part / ".git/info"
            info.mkdir(exist_ok=True)  # a template of the user's may lack it
            with (info / "exclude").open("a", encoding="utf-8") as exclude:
                exclude.write(f"/{path}\n")
    ask = [sys.executable, "-m", "dvc", "cache", "dir"]
    cache = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    write_text(part / ".dvc/config.local", f'[cache]\n    dir = "{cache}"\n')
    write_text(part / PARAMS_FILE, point.params)
    os.replace(part, folder)
    return folder


def _tell_others(points: Sequence[GridPoint]) -> None:
    """Print the number of unfinished runs of other grids and of other repository states, which stay."""
    names = {point.name for point in points}
    left = [path for path in HOME.iterdir() if path.is_dir() and not path.is_symlink() and path.name not in names]
    if left:
        print(f"unfinished runs of other grids or commits in {HOME}: {len(left)}; `make clean-scratch` deletes them.")


def _state(method: str) -> bytes:
    """Hash of what determines an experiment besides its settings: the commit, uncommitted edits and the method.

    Files of git that runs rewrite do not count, or a sweep could not be resumed after another run.

    Raises:
        UserError: as ``check_commit``.
    """
    check_commit()
    digest = blake2b(_git("rev-parse", "HEAD").encode(), digest_size=8)
    digest.update(method.encode())
    for name in _edited():
        path = Path(name)
        if path != LOCK and not path.is_relative_to(KEPT_BY_GIT):
            digest.update(os.fsencode(name) + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return digest.digest()


def _inputs(values: Mapping[str, Any]) -> bytes:
    """Hash of the files that the params name by path, which git may ignore."""
    digest = blake2b(digest_size=8)
    for path in sorted(named_paths(values)):
        digest.update(f"{path} {_content(path)}".encode())
    return digest.digest()


_content = cache(content_digest)


def _name(settings: Mapping[str, Any], state: bytes) -> str:
    """A short name, valid in a git reference and determined by the settings and state."""
    words = "-".join(f"{key.rsplit('.', 1)[1] if '.' in key else key}-{value}" for key, value in settings.items())
    digest = blake2b(repr(sorted(settings.items())).encode() + state, digest_size=3).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_]+', '-', words).strip('-')[:NAME_LENGTH]}-{digest}"


def _edited() -> list[str]:
    """Files that differ from the last commit or are untracked, except ignored ones."""
    changed = _git("diff", "--no-renames", "--name-only", "-z", "HEAD").split("\0")
    new = _git("ls-files", "-z", "--others", "--exclude-standard").split("\0")
    return sorted({name for name in changed + new if name})


def _experiments(folder: Path) -> list[str]:
    """Git references of DVC experiments."""
    listed = _git("for-each-ref", "--format=%(refname)", "refs/exps", folder=folder).split()
    return [ref for ref in listed if re.fullmatch(r"refs/exps/[0-9a-f]{2}/[0-9a-f]{38}/[^/]+", ref)]


def _git(*words: str, folder: Path = Path()) -> str:
    """A git command's output. Raises: UserError: it failed, for example because of the user's own hook."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # file names may contain any bytes
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            "git is not installed; install it: each point of a sweep runs in a clone of the repository."
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"`git {words[0]}` failed in {folder.absolute()} ({said}); correct that, then run it again.")
    return done.stdout


if __name__ == "__main__":
    cli.run(app)
