"""Declared data sources: fetched from their URL or from a mirror folder, and used only if the SHA-256 matches.

``data/sources.yaml`` lists them. A file appears in the target folder complete and verified, or not at all.
"""

import os
import re
import shutil
from hashlib import file_digest
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from selfimprove.core.errors import UserError, fault
from selfimprove.core.params import Section
from selfimprove.core.publish import aside
from selfimprove.core.records import only_regular, read_rows

SOURCES = Path("data/sources.yaml")

TIMEOUT_SECONDS = 60.0
_CHUNK = 1 << 20


def _relative(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not path:
        raise ValueError("a path below the mirror folder is wanted, without '..'")
    return path


class SourceFile(Section):
    """One file: its path below a mirror folder, its URL (None: not available in this form) and its hash."""

    path: Annotated[str, AfterValidator(_relative)]
    url: str | None = Field(default=None, pattern=r"^https?://")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Source(Section):
    """A data set."""

    about: str
    licence: str
    files: list[SourceFile] = Field(min_length=1)


def mirror_folder() -> Path | None:
    """The folder that the environment variable DATA_MIRROR names; None if it is unset."""
    value = os.environ.get("DATA_MIRROR")
    return Path(value) if value else None


def load_sources(path: Path = SOURCES) -> dict[str, Source]:
    """The declared sources by name.

    Raises:
        UserError: the file is missing or does not match the schema (names the key).
    """
    from selfimprove.core.yaml import read_yaml  # imported here: backend environments lack ruamel.yaml

    try:
        return TypeAdapter(dict[str, Source]).validate_python(read_yaml(path))
    except ValidationError as error:
        raise UserError(f"{path}: {fault(error)}; fix the entry.") from None


def fetch(
    name: str,
    folder: Path,
    *,
    mirror: Path | None = None,
    sources_file: Path = SOURCES,
    tries: int = 5,
    backoff: float = 1.0,
) -> list[Path]:
    """Fetch a source's files into ``folder``; returns their paths in the order declared.

    Files are copied from ``mirror`` if given (without any network access), otherwise downloaded by HTTP with ``tries``
    attempts, a wait of ``backoff`` seconds before the second that doubles each time, and a timeout of
    ``TIMEOUT_SECONDS`` without data. An existing file with the right hash is kept. JSONL files are parsed once, so that
    a truncated line is found here and not in the middle of a run.

    Raises:
        UserError: unknown source, missing or unreachable file, wrong hash, truncated line.
    """
    sources = load_sources(sources_file)
    if name not in sources:
        raise UserError(f"{sources_file} declares no source {name!r}; choose one of {', '.join(sorted(sources))}.")
    paths = []
    for file in sources[name].files:
        target = folder / PurePosixPath(file.path).name
        if not (target.is_file() and sha256_of(target) == file.sha256):
            with aside(target) as part:
                if mirror is not None:
                    origin = str(mirror / file.path)
                    _copy(mirror / file.path, part, downloads=file.url is not None)
                elif file.url is None:
                    raise UserError(
                        f"{file.path} of {name} cannot be downloaded; set DATA_MIRROR to a folder that contains it."
                    )
                else:
                    origin = file.url
                    _download(file.url, part, tries=tries, backoff=backoff)
                _verify(part, file, origin, sources_file)
        paths.append(target)
    return paths


def _copy(origin: Path, part: Path, *, downloads: bool) -> None:
    only_regular(origin)
    try:
        with origin.open("rb") as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        other = ", or unset DATA_MIRROR to download it" if downloads else ""
        raise UserError(
            f"{origin} can't be read ({error.strerror}); put it into the folder that DATA_MIRROR names{other}."
        ) from None


def _download(url: str, part: Path, *, tries: int, backoff: float) -> None:
    import httpx
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

    from selfimprove.core.address import client_settings

    def passing(error: BaseException) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code == 429 or error.response.status_code >= 500
        return isinstance(error, httpx.TransportError)

    retrying = Retrying(
        retry=retry_if_exception(passing),
        stop=stop_after_attempt(tries),
        wait=wait_exponential(multiplier=backoff, max=30),
        reraise=True,
    )
    with client_settings():
        client = httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=True)
    try:
        for attempt in retrying:
            with attempt, client.stream("GET", url) as response, part.open("wb") as target:
                response.raise_for_status()
                for block in response.iter_bytes(_CHUNK):
                    target.write(block)
    except httpx.HTTPStatusError as error:
        reason = f"status {error.response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    else:
        return
    finally:
        client.close()
    raise UserError(
        f"{url} can't be fetched ({reason}); check the network, or set DATA_MIRROR to a folder that contains the file."
    )


def _verify(part: Path, file: SourceFile, origin: str, sources_file: Path) -> None:
    found = sha256_of(part)
    if found != file.sha256:
        raise UserError(
            f"{origin}: SHA-256 is {found}, {sources_file} declares {file.sha256}; get the declared version, or, if "
            "the change is meant, declare the new hash."
        )
    if file.path.endswith(".jsonl"):
        try:
            for _ in read_rows(part):
                continue
        except UserError as error:
            raise UserError(re.sub(re.escape(str(part)), lambda _: origin, str(error))) from None


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
