"""The settings of ``make exp SET="key=value …"``: validated before any work, written when the run starts."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.git import check_commit, identity
from selfimprove.core.publish import write_text
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.check import params_faults, run_faults
from selfimprove.pipeline.layout import changeable, rewritten
from selfimprove.pipeline.params import PARAMS_FILE, short


def check_settings(text: str) -> dict[str, Any]:
    """Let DVC apply the settings to a copy of params.yaml and return the resulting params.

    Raises:
        UserError: a setting that DVC cannot parse, an unknown key (suggests the closest one) or an invalid value; or
            as ``check_commit`` and ``identity``.
    """
    check_commit()
    identity()
    read_yaml(PARAMS_FILE)
    changeable(PARAMS_FILE.read_text(encoding="utf-8"))
    keys = [word.partition("=")[0].lstrip("+~") for word in text.split()]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"SET: {twice[0]} occurs twice; give it one value, or use `make sweep` for several.")
    if "${" in text:
        raise UserError(
            "SET: ${…} is not a value, because results would depend on where it is filled in; write it out."
        )
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copy(PARAMS_FILE, folder))
        absent = [word for word in text.split() if not _taken(copy, word)]
        for word in absent:  # add as new keys, so that the schemas report the fault
            if not _taken(copy, f"+{word}"):
                raise UserError(
                    f"SET: {short(word)} is not key=value with a single value; write for example run.seed=18, or use "
                    "`make sweep` for several values."
                )
        wanted = read_yaml(copy)
    if faults := dict.fromkeys(params_faults(wanted)):
        raise UserError("\n".join([*faults, f"{PARAMS_FILE} was not changed."]))
    if absent and absent[0].startswith("+"):
        raise UserError(f"SET: {PARAMS_FILE} already contains the key of {absent[0]!r}; write it without the +.")
    if absent:
        raise UserError(f"SET: {PARAMS_FILE} does not contain the key of {absent[0]!r}; write +{absent[0]} to add it.")
    return wanted


def write_settings(text: str) -> None:
    """Write the settings to params.yaml without changing other lines (DVC would reformat the whole file).

    Raises:
        UserError: see ``check_settings``; nothing is written then.
    """
    wanted = check_settings(text)
    write_text(PARAMS_FILE, rewritten(PARAMS_FILE.read_text(encoding="utf-8"), wanted))


def _taken(file: Path, word: str) -> bool:
    """Apply a setting to the file; returns whether DVC accepted it."""
    from dvc.exceptions import InvalidArgumentError
    from dvc.utils.hydra import apply_overrides
    from omegaconf.errors import OmegaConfBaseException
    from ruamel.yaml.error import YAMLError

    try:
        apply_overrides(file, [word])
    except (InvalidArgumentError, OmegaConfBaseException, YAMLError, ValueError, RecursionError):
        return False
    return True


@one_sentence()
def main() -> None:
    """Arguments: the settings, separated by spaces, and the methods about to run, which are checked as by ``check``."""
    faults, _ = run_faults(check_settings(sys.argv[1]), sys.argv[2:])
    if faults:
        raise UserError("\n".join([*dict.fromkeys(faults), f"{PARAMS_FILE} was not changed."]))


if __name__ == "__main__":
    main()
