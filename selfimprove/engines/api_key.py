"""Looks up an endpoint's API key, in the environment or in a key file that params specify."""

from collections.abc import Mapping
from pathlib import Path

from selfimprove.core.errors import UserError

DEFAULT_NAME = "OPENAI_API_KEY"


def find_key(variable: str | None, file: str | None, environment: Mapping[str, str]) -> str | None:
    """The API key: the environment variable, else the line ``NAME: value`` of the key file; None if both are None.

    In the file, quotes around the value are dropped, ``=`` is accepted instead of the colon and ``export`` before the
    name, and ``#`` starts a comment line. NAME is ``variable``, or ``OPENAI_API_KEY`` if that is None.

    Raises:
        UserError: the key is found in neither place, or cannot be sent in a header. The message never contains the key.
    """
    if variable is None and file is None:
        return None
    name = variable or DEFAULT_NAME
    key = environment.get(name, "").strip() if variable else ""
    if not key and file is not None:
        key = _key_in_file(Path(file), name)
    if not key:
        place = f" or add the line '{name}: <key>' to {file}" if file else ""
        raise UserError(
            f"the API key {name} is not set; export {name}=<key>{place} (without a key: set api_key_env to null)."
        )
    if not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
        raise UserError(f"the API key {name} contains characters that a key cannot have, such as spaces; set it again.")
    return key


def _key_in_file(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        raise UserError(f"the key file {path} cannot be read as text; fix it or set {name}.") from None
    for line in lines:
        if line.lstrip().startswith("#"):
            continue
        for mark in (":", "="):
            left, found, right = line.partition(mark)
            if found and left.strip().removeprefix("export ").strip() == name:
                return right.strip().strip("\"'").strip()
    return ""
