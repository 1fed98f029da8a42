"""Full weights of an adapter: merged once into ``.scratch/merged``, and shared by all processes.

A merged copy is named by the content of the adapter's folder, which includes its base's hash, and is created
atomically. A process that uses a copy holds a lock on it until it ends; of the unused copies the newest few are kept.

    python -m selfimprove.models.merge models/spin/iter1      prints the folder of its full weights (merging if needed)
"""

import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.publish import make_durable
from selfimprove.models.adapters import content_key, is_adapter, read_base

STORE = Path(".scratch/merged")
KEPT = 3
"""Number of merged copies kept: a policy, a reflection model or opponent, and the parent of one of them."""

_HELD: dict[Path, int] = {}
"""Locks of the copies that this process uses, held until it ends."""


def full_weights(folder: Path, *, trust_remote_code: bool = False) -> Path:
    """A folder that loads as a plain model: ``folder`` itself, or a copy with its adapter merged into its base.

    A base that is itself an adapter is merged first. The weights are those of ``merge.merge_adapter`` in the dtype that
    the adapter was trained in. Merging runs in a subprocess, which frees its memory afterwards and does not affect
    the caller's CUDA state and threads.

    Raises:
        UserError: as ``adapters.read_base``, or the merge failed.
    """
    if not is_adapter(folder):
        return folder
    base, record = read_base(folder)
    copy = STORE.absolute() / content_key(folder)
    copy.parent.mkdir(parents=True, exist_ok=True)
    while copy not in _HELD:
        shared = _lock(copy, fcntl.LOCK_SH)
        if copy.is_dir():
            _HELD[copy] = shared
            break
        os.close(shared)
        alone = _lock(copy, fcntl.LOCK_EX)
        try:
            if not copy.is_dir():
                full = full_weights(base, trust_remote_code=trust_remote_code)
                _make(copy, [str(folder), "--base", str(full), "--dtype", record.dtype], alone, trust_remote_code)
        finally:
            os.close(alone)
    os.utime(copy)
    _remove_old()
    return copy


def _make(copy: Path, arguments: list[str], lock: int, trust_remote_code: bool) -> None:
    """Merge in a subprocess that inherits the lock: if this process is killed, others wait for the subprocess."""
    part = copy.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "selfimprove.models.merge", *arguments, "--out", str(part)]
    done = subprocess.run(
        command + ["--trust-remote-code"] * trust_remote_code,
        env=environment, pass_fds=[lock], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise UserError(
            f"{arguments[0]} cannot be merged into its base: {lines[-1] if lines else f'exit code {done.returncode}'}"
        )
    make_durable(part)
    os.replace(part, copy)


def _lock(copy: Path, kind: int) -> int:
    """Descriptor that holds the lock of a merged copy; the lock file may only be removed under the lock."""
    path = copy.with_suffix(".lock")
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, kind)
            if os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_old() -> None:
    """Remove unused merged copies beyond the newest ``KEPT``, and what killed merges left behind."""
    store = STORE.absolute()
    used: list[tuple[float, Path]] = []
    for one in store.iterdir():
        with suppress(FileNotFoundError):  # another process has just removed it
            if not one.suffix and one.is_dir():
                used.append((one.stat().st_mtime, one))
    copies = [one for _, one in sorted(used, reverse=True)]
    for copy in [*copies[KEPT:], *(part.with_suffix("") for part in store.glob("*.part"))]:
        with suppress(BlockingIOError):
            descriptor = _lock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(copy, ignore_errors=True)
            shutil.rmtree(copy.with_suffix(".part"), ignore_errors=True)
            copy.with_suffix(".lock").unlink()
            os.close(descriptor)
