"""What `make exp` checks of ``SET="key=value …"`` before DVC writes it into params.yaml."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.check import PARAMS_FILE, params_faults


def check_settings(text: str) -> None:
    """Let DVC write the settings into a copy, and validate that.

    Raises:
        UserError: a word that DVC does not read, an unknown key, or a value that does not fit; names the nearest key.
    """
    read_yaml(PARAMS_FILE)
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copy(PARAMS_FILE, folder))
        absent = [word for word in text.split() if not _taken(copy, word)]
        for word in absent:  # as new keys, so that the schemas say what is wrong with them
            if not _taken(copy, f"+{word}"):
                raise UserError(
                    f"SET: {word!r} is not key=value with one value; write for example run.seed=18, and give several "
                    "values to `make sweep`."
                )
        faults = dict.fromkeys(params_faults(read_yaml(copy)))
    if faults:
        raise UserError("\n".join([*faults, "SET was not written."]))
    if absent:
        raise UserError(f"SET: {PARAMS_FILE} has no line for {absent[0]!r} to change; write +{absent[0]} to add it.")


def _taken(file: Path, word: str) -> bool:
    """Whether DVC takes the word; then it stands in the file."""
    from dvc.exceptions import InvalidArgumentError
    from dvc.utils.hydra import apply_overrides
    from omegaconf.errors import OmegaConfBaseException

    try:
        apply_overrides(file, [word])
    except (InvalidArgumentError, OmegaConfBaseException):
        return False
    return True


@one_sentence()
def main() -> None:
    """Argument: the settings, with spaces between them."""
    check_settings(sys.argv[1])


if __name__ == "__main__":
    main()
