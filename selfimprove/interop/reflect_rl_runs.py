"""Folders of the original's runs, ``results/NNN_rl_finetune`` (docs/reflect-rl.md, L50): their numbers and weights."""

import re
from collections.abc import Iterable
from pathlib import Path

from selfimprove.core.errors import UserError

_NUMBER = re.compile(r"[0-9]+")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)")
_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth"})
"""Suffixes of a checkpoint's weights: model or adapter, critic, optimiser."""


def next_run(names: Iterable[str]) -> str:
    """The number of the next run beside runs with these folder names: the highest number at a name's start, plus one.

    It has at least three digits; names without a number do not count, and the first run is 000. The original read three
    characters of each name, so that run 1000 was followed by 101.
    """
    numbers = [int(found[0]) for name in names if (found := _NUMBER.match(name))]
    return f"{max(numbers, default=-1) + 1:03d}"


def clean_checkpoints(run: Path) -> list[Path]:
    """Delete the weights of all of a run's checkpoints but the newest that has any; logs and settings stay.

    A run that was killed while saving may have left a checkpoint without weights, which cannot replace an older one.

    Returns:
        The deleted files, relative to ``run``.

    Raises:
        UserError: the folder has no checkpoint, or a file cannot be deleted.
    """
    found = {int(match[1]): one for one in run.glob("checkpoint-*") if (match := _CHECKPOINT.fullmatch(one.name))}
    if not found:
        raise UserError(f"{run} has no checkpoint-K folder; name a folder that a training run wrote.")
    weights = {
        step: [file for file in sorted(folder.rglob("*")) if file.suffix in _WEIGHTS and file.is_file()]
        for step, folder in sorted(found.items())
    }
    newest = max((step for step, files in weights.items() if files), default=0)
    # The weights that a link leads to may belong to another run.
    old = [file for step in weights if step < newest and not found[step].is_symlink() for file in weights[step]]
    for file in old:
        try:
            file.unlink()
        except OSError as error:
            raise UserError(f"{file} cannot be deleted ({error.strerror}); check the folder's owner.") from None
    return [file.relative_to(run) for file in old]
