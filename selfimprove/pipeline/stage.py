"""The stage runner: everything that stage scripts share.

A stage reads validated params, acquires its lock, works in a scratch folder named by the hash of its inputs, params and
code (the manifest that DVC also depends on, ``pipeline.closure``), and publishes its outputs at the end by renaming.
If it is killed at any moment and started again, it resumes from the scratch folder and produces the same bytes.
DVC deletes a stage's outputs before running it. A finished scratch folder therefore keeps hard links to them, and a
re-run with the same identity publishes these at once.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from selfimprove.core.errors import FULL, UserError, for_terminal, refusal, refused_file
from selfimprove.core.journal import Journal
from selfimprove.core.publish import FINDER, link_copy, make_durable, publish, remove, write_json
from selfimprove.core.tracking import Tracker, TrackingParams
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.cluster.config import use
from selfimprove.engines.progress import StageProgress
from selfimprove.pipeline import dvc_files, kernels, warm
from selfimprove.pipeline.closure import manifest
from selfimprove.pipeline.lock import stage_lock
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, RunParams, S, load_section, named_paths
from selfimprove.pipeline.recorded import check_unedited, of_method
from selfimprove.pipeline.stage_log import kept_log
from selfimprove.training.stopping import sigterm_interrupts

if TYPE_CHECKING:
    from selfimprove.engines.episodes import EpisodeResult

T = TypeVar("T")

SCRATCH = Path(".scratch")
JOURNAL, MANIFEST = "completions.journal", "manifest.json"
DVC_STAGE = "DVC_STAGE"
"""Environment variable that DVC sets to the name of the running stage, such as ``rise-generate@iter1``."""
PROBE_BYTES = 1 << 20
LAUNCHERS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip
"""Variables of a launcher around the run, such as mpirun or a Kubernetes job; accelerate would wait for its processes.
Those named ``ACCELERATE_…`` would override the params, such as the precision."""


class Stage(Generic[S]):
    """One run of one stage.

    Attributes:
        name: the stage's name in dvc.yaml, such as ``rise-generate@iter1``.
        item: the part of the name after ``@`` ("" without one).
        run: the ``run`` section; ``params``: the method's section.
        tracker: the curves of this run.
    """

    def __init__(self, name: str, item: str, run: RunParams, params: S, script: Path, tracking: TrackingParams) -> None:
        self.name, self.item, self.run, self.params = name, item, run, params
        self._script = script
        self.tracker = Tracker(tracking, name, SCRATCH)
        self._identity: Any = params
        self._inputs: dict[str, Path] = {}
        self._outputs: dict[Path, Path] = {}
        self._journal: Journal | None = None
        self._blocked = False
        self.timing: dict[str, float] = {}

    def input(self, path: str) -> Path:
        """Declare an input, whose content becomes part of the run's identity, and return its path.

        Raises:
            UserError: the path does not exist.
        """
        if "scratch" in self.__dict__:
            raise RuntimeError(f"{self.name}: input {path} was declared after the work began")
        place = Path(path)
        if not place.exists():
            method = next((one for one in METHODS if of_method(self.name, one)), "all")
            raise UserError(
                f"{path} does not exist; run `make repro METHOD={method}`, which first runs the stages that write it."
            )
        self._inputs[path] = place
        return place

    def narrow(self, identity: Any) -> None:
        """Declare the part of the params that this stage reads; only this part enters its identity.

        Files and folders that it names by path are inputs, identified by content (``named_paths``).
        """
        self._identity = identity

    @cached_property
    def scratch(self) -> Path:
        """The run's own folder, named by its identity.

        Folders of this stage's other identities are removed, except those with a journal: its answers may have cost
        hours or money, and are there again when the params are. Checkpoints are not kept, because of their size.

        The first access marks the end of input declarations and the start of the work. Work that an earlier run with
        the same identity finished is not repeated (``_AlreadyDone``, which the runner catches).
        """
        home = SCRATCH / "stages" / self.name.replace("@", "-")
        folder = home / self._key()
        home.mkdir(parents=True, exist_ok=True)
        for other in home.iterdir():
            if other != folder and not (other / JOURNAL).exists():
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        if self._intact(folder / "done"):
            self.__dict__["scratch"] = folder
            raise _AlreadyDone
        return folder

    def output(self, path: str) -> Path:
        """Declare an output and return a new temporary path to write it to; it is published when the stage ends."""
        place = self.scratch / "out" / path
        remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        self._outputs[Path(path)] = place
        return place

    def pick(self, entries: Mapping[str, T]) -> T:
        """The params entry named by the item.

        Raises:
            UserError: there is no such entry.
        """
        if self.item not in entries:
            raise UserError(f"params.yaml has no entry {self.item!r} for this stage; it has: {', '.join(entries)}.")
        return entries[self.item]

    def journal(self) -> Journal:
        """The run's journal, including the entries of an earlier, killed run with the same identity."""
        self._journal = Journal(self.scratch / JOURNAL)
        return self._journal

    def count_blocked(self, played: Sequence[EpisodeResult]) -> None:
        """Report blocked episodes, in which an engine or environment failed permanently.

        A blocked episode counts as failed. If there are any, the journal is kept after publication, so that another run
        of the stage (``dvc repro --force --single-item``) repeats only the blocked episodes.

        Raises:
            UserError: their share exceeds ``run.max_blocked``; nothing is published, and the answers are kept.
        """
        failed = [(one.id, one.error or "") for one in played if one.status == "blocked"]
        self.count_failed(failed, len(played), "episodes", "They count as failed")

    def count_failed(self, failed: Sequence[tuple[str, str]], total: int, what: str, effect: str) -> None:
        """As ``count_blocked``, for any work of which each failure has an id and a cause.

        Raises:
            UserError: as ``count_blocked``.
        """
        if not failed:
            return
        said = f"{len(failed)} of {total} {what} are blocked; the first, {failed[0][0]}: {failed[0][1]}"
        if len(failed) > self.run.max_blocked * total:
            raise UserError(
                f"{said.rstrip('.')}. run.max_blocked allows a share of {self.run.max_blocked:g}; fix the cause and "
                f"run again: finished {what} are kept, only the blocked ones are repeated."
            )
        self._blocked = True
        shown = for_terminal(" ".join(said.split()).rstrip("."))
        again = f"`dvc repro --force --single-item {self.name}`"  # --force alone repeats all stages before it, too
        print(f"{self.name}: {shown}. {effect}; {again} repeats them.", file=sys.stderr)

    @property
    def journal_seconds(self) -> float:
        """Seconds spent writing the journal."""
        return 0.0 if self._journal is None else self._journal.seconds

    def progress(self, total: int) -> StageProgress:
        """Progress over ``total`` units of this stage."""
        return StageProgress(self.name, total, tracker=self.tracker)

    def publish(self) -> None:
        """Move every output into place, keeping hard links in the scratch folder."""
        done = self.scratch / "done"
        if not done.is_dir():
            staged = self.scratch / "done.part"
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            manifest = {}
            for path, place in self._outputs.items():
                if not place.exists():
                    raise RuntimeError(f"{self.name}: output {path} was declared but not written")
                manifest[str(path)] = content_digest(place)
                (staged / path).parent.mkdir(parents=True, exist_ok=True)
                link_copy(place, staged / path)
            write_json(staged / MANIFEST, manifest)
            make_durable(staged)
            if self._blocked:  # not finished: a run after a failure to publish repeats the blocked work
                done = staged
            else:
                os.replace(staged, done)
        for path in json.loads((done / MANIFEST).read_text()):
            fresh = self.scratch / "fresh"
            shutil.rmtree(fresh, ignore_errors=True)
            link_copy(done / path, fresh / path)
            publish(fresh / path, Path(path))
        kept = JOURNAL if self._blocked else "done"
        for left in self.scratch.iterdir():
            if left.name != kept:
                remove(left)

    def _intact(self, done: Path) -> bool:
        """Whether finished outputs exist unchanged (a user may have edited one through its hard link)."""
        if not done.is_dir():
            return False
        try:
            manifest = json.loads((done / MANIFEST).read_bytes())
            if all((done / path).exists() and content_digest(done / path) == value for path, value in manifest.items()):
                return True
        except (OSError, ValueError, AttributeError):
            print(f"{self.name}: the record of its finished work is damaged; repeating the work.", file=sys.stderr)
        shutil.rmtree(done)
        return False

    def _key(self) -> str:
        digest = blake2b(digest_size=16)
        digest.update(repr((self.name, self.run.identity, self._identity)).encode())
        named = {str(path): path for path in named_paths(self._identity)}
        for declared, path in sorted({**self._inputs, **named}.items()):
            digest.update(f"{declared} {content_digest(path)}".encode())
        digest.update(manifest(self._script).encode())
        return digest.hexdigest()


class _AlreadyDone(BaseException):
    """An earlier run with this identity has finished; only publishing is left."""


def stage(name: str, section: str, schema: type[S]) -> Callable[[Callable[[Stage[S]], None]], Callable[[], None]]:
    """Decorator that makes a script's ``main`` a stage.

    ``python -m stages.rise.generate iter1`` runs ``rise-generate@iter1``. The default item is taken from ``DVC_STAGE``.

    Exit codes: 0 after success; 2 after an error that the user can correct, reported in one sentence; 130 if
    interrupted. Any other code is a bug in this repository and comes with a traceback.
    """

    def decorate(main: Callable[[Stage[S]], None]) -> Callable[[], None]:
        def command() -> None:
            module = _module_of(main)
            script = Path(*module.split(".")).with_suffix(".py")
            if not kernels.chosen(wanted := kernels.wanted()):
                kernels.start_again(wanted)
            # Read from the environment, so that no name from params.yaml ever becomes part of a shell command.
            item = sys.argv[1] if len(sys.argv) > 1 else os.environ.get(DVC_STAGE, "").partition("@")[2]
            if "/" in item or not item.isprintable():  # it becomes part of the names of files
                said = f"there is no entry {item!r}; write the name of one of params.yaml, such as iter1."
                print(f"{name}: {said}", file=sys.stderr)
                sys.exit(2)
            full = f"{name}@{item}" if item else name
            # On the monotonic clock: the other may be set while the stage runs, as WSL does after sleep.
            since = time.monotonic() - (time.time() - warm.started())
            with kept_log(full), sigterm_interrupts():
                work(full, item, since, script)

        def work(full: str, item: str, since: float, script: Path) -> None:
            try:
                if DVC_STAGE in os.environ:
                    dvc_files.keep()
                values = read_yaml(PARAMS_FILE)
                run = load_section(values, "run", RunParams, str(PARAMS_FILE))
                run = run.model_copy(update={"cluster": run.cluster.asked()})
                use(run.cluster)
                params = load_section(values, section, schema, str(PARAMS_FILE))
                tracking = load_section({"tracking": {}, **values}, "tracking", TrackingParams, str(PARAMS_FILE))
                _run(Stage(full, item, run, params, script, tracking), main, since)
                if DVC_STAGE in os.environ:
                    check_unedited(os.environ[DVC_STAGE], values)
            except UserError as error:
                print(f"{full}: {for_terminal(' '.join(str(error).split()))}", file=sys.stderr)
                sys.exit(2)
            except Exception as error:
                sentence = _full_disk(error) or refusal(error)
                if sentence is None:
                    raise
                print(f"{full}: {for_terminal(sentence)}", file=sys.stderr)
                sys.exit(2)
            except KeyboardInterrupt:
                print(f"{full}: stopped; run the same command again to resume.", file=sys.stderr)
                sys.exit(130)

        return command

    return decorate


def _module_of(main: Callable[..., None]) -> str:
    """The script's module name, such as ``stages.rise.data``, even if it was started as a file."""
    spec = main.__globals__["__spec__"]
    if spec is not None:
        return str(spec.name)
    parts = Path(main.__globals__["__file__"]).resolve().with_suffix("").parts
    return ".".join(parts[len(parts) - 1 - parts[::-1].index("stages") :])


def _run(current: Stage[S], main: Callable[[Stage[S]], None], since: float) -> None:
    """Execute one run under its lock, from main to publishing; ``since``: its start by ``time.monotonic``."""
    kernels.check(current.run.kernels)
    # Read by OpenMP and MKL when torch is imported, which no stage has done yet.
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(current.run.threads)
    for name in [one for one in os.environ if one in LAUNCHERS or one.startswith("ACCELERATE_")]:
        del os.environ[name]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    with stage_lock(SCRATCH / "locks", current.name.replace("@", "-")):
        began = time.monotonic()
        with suppress(_AlreadyDone), closing(current.tracker):
            main(current)
        own = time.monotonic() - began - current.journal_seconds
        current.publish()
        # ``seconds`` counts from the start of the process, including Python's start-up and imports. ``own_seconds`` is
        # the stage's work without start-up, imports, journals and publishing.
        timing = {**current.timing, "own_seconds": own, "seconds": time.monotonic() - since}
        write_json(SCRATCH / "timing" / f"{current.name}.json", timing)


def _full_disk(error: Exception) -> str | None:
    """The message if the disk is full, or a quota or file-size limit is reached; None otherwise.

    torch and safetensors report a failed write by their own exceptions without the reason, hence the test write.
    SQLite keeps the journal's table in a temporary file.
    """
    if isinstance(error, sqlite3.OperationalError):
        return (
            f"no temporary file can be written ({error}); free some space, or set TMPDIR to another folder, and run "
            "again: finished work is kept, and no output was changed."
        )
    if not isinstance(error, OSError):
        try:
            with TemporaryFile(dir=SCRATCH) as probe:
                probe.write(bytes(PROBE_BYTES))
        except OSError as found:
            error = found
    if isinstance(error, OSError) and error.errno in FULL:
        return (
            f"cannot write {refused_file(error) or 'its files'}: {error.strerror}; free some space and run again: "
            "finished work is kept, and no output was changed."
        )
    return None


def content_digest(path: Path) -> str:
    """Hash of a file's content, or of the names and contents of all files below a folder."""
    digest = blake2b(digest_size=16)
    files = [file for file in path.rglob("*") if file.is_file() and file.name != FINDER] if path.is_dir() else [path]
    for file in sorted(files):
        digest.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as content:
            while chunk := content.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
