"""``make use PROFILE=name``: writes params.yaml as the default profile with one overlay from ``profiles/``.

Mappings are merged key by key and everything else is replaced; a null removes a mapping of the default. A mapping of a
different kind (another ``engine``, another ``launcher.kind``) replaces the default's as a whole. Lines that the overlay
does not change keep their text, including comments.
"""

import re
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError, meant
from selfimprove.core.git import git
from selfimprove.core.overlay import merge
from selfimprove.core.publish import write_text
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.layout import rewritten
from selfimprove.pipeline.params import PARAMS_FILE

FOLDER = Path("profiles")
DEFAULT = "default"
WRITTEN = Path(".scratch/use")
"""Contains the SHA-256 of the params.yaml that `make use` wrote last."""
PROFILE_MARK = "Profile "
"""Start of the comment line that names the profile of a params.yaml."""


def compose(name: str, folder: Path = FOLDER) -> str:
    """The text of params.yaml under a profile, with the default's own lines wherever the profile changes nothing.

    A value that the profile changes loses the comment beside the default's value. The profile's opening comment is
    placed at the top of the file.

    Raises:
        UserError: there is no such profile (names the closest), or it is not a YAML mapping.
    """
    wanted = composed(name, folder)
    text = _file(DEFAULT, folder).read_text(encoding="utf-8")
    if name == DEFAULT:
        return text
    written = rewritten(text, wanted).splitlines()
    head = next((place for place, line in enumerate(written) if not line.startswith("#")), 0)
    opening = [f"# {PROFILE_MARK}{name}.", *_opening_comment(_file(name, folder))]
    return "".join(f"{line}\n" for line in [*written[:head], *opening, *written[head:]])


def named(text: str) -> str:
    """The profile named in the text of a params.yaml."""
    found = re.search(rf"^# {PROFILE_MARK}([\w.-]+)\.$", text, re.MULTILINE)
    return found[1] if found else DEFAULT


def composed(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The params that ``compose`` returns as text, as plain objects.

    Raises:
        UserError: there is no such profile (names the closest), or it is not a YAML mapping.
    """
    params = read_yaml(_file(DEFAULT, folder))
    if name != DEFAULT:
        merge(params, read_yaml(_file(name, folder)))
    return params


def names(folder: Path = FOLDER) -> list[str]:
    """Names of all profiles."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _opening_comment(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[: next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))]


def _file(name: str, folder: Path) -> Path:
    path = folder / f"{name}.yaml"
    if name not in names(folder):  # excludes paths that leave the folder
        hint = meant(name, names(folder), f"choose one of: {', '.join(names(folder))}.")
        raise UserError(f"there is no profile {name!r} in {folder}/; {hint}")
    return path


@one_sentence()
def main() -> None:
    """Write params.yaml, unless the profile is invalid or the file contains edits that exist nowhere else."""
    from selfimprove.pipeline.dvc_files import active
    from selfimprove.pipeline.sections import check_schemas

    name = sys.argv[1] if len(sys.argv) > 1 else DEFAULT
    check_schemas(composed(name), str(_file(name, FOLDER)))
    text = compose(name)
    if active():
        raise UserError(
            f"a run is active in this folder and reads {PARAMS_FILE}; wait for it to end, or stop it, then run "
            "`make use` again."
        )
    if PARAMS_FILE.is_file() and not (_kept(PARAMS_FILE.read_bytes()) or _committed(PARAMS_FILE)):
        raise UserError(
            f"{PARAMS_FILE} has uncommitted edits, which `make use` would overwrite; commit them, or run "
            f"`git checkout {PARAMS_FILE}` to discard them, then run `make use` again."
        )
    same = PARAMS_FILE.is_file() and PARAMS_FILE.read_bytes() == text.encode()
    write_text(PARAMS_FILE, text)
    write_text(WRITTEN, f"{sha256(text.encode()).hexdigest()}\n")
    shows = "it did before, too" if same else f"`git diff {PARAMS_FILE}` shows the changes"
    print(f"{PARAMS_FILE} now contains profile {name}; {shows}.")


def _kept(content: bytes) -> bool:
    """Whether params.yaml is what `make use` wrote last (even if the profile has changed since) or equals a profile."""
    if WRITTEN.is_file() and WRITTEN.read_bytes().strip() == sha256(content).hexdigest().encode():
        return True
    with suppress(UnicodeDecodeError, UserError):
        text = content.decode()
        return named(text) in names() and text == compose(named(text))
    return False


def _committed(path: Path) -> bool:
    """Whether the file equals its version in the last commit."""
    code, shown = git("show", f"HEAD:./{path}")
    return code == 0 and shown == path.read_bytes().decode("utf-8", "replace")


if __name__ == "__main__":
    main()
