"""``make remote``, ``make publish``, ``make fetch``: transfer of results between machines through a DVC remote.

A remote is an S3 bucket or a folder shared by several machines. ``publish`` copies to it every output in DVC's cache,
and the run cache (which stage produced which outputs from which inputs). ``fetch`` downloads what a clone's dvc.lock
names, and with ``--all-runs`` also the outputs of every other published run. Each fetched object is re-read and
verified: DVC itself drops a damaged one without naming it, and trusts its own index of the remote. Whoever may write to
the remote chooses what the run cache returns, but not where: an entry or a folder's list that names other paths than
the stage's outputs is refused.

Runs in the environment of ``make env-remote``, which has dvc-s3. Credentials are those found by boto3 (environment
variables, ``~/.aws``, a machine's role) and are never written.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from selfimprove.core import cli
from selfimprove.core.errors import FULL, UserError, first_line, refusal
from selfimprove.core.git import git
from selfimprove.pipeline import run_cache, verify
from selfimprove.pipeline.recorded import LOCK

NAME = "shared"
"""The remote's name in .dvc/config. It is not DVC's default remote, because the main environment's DVC, which has no S3
client, would then fail to read metrics of commits."""

EARLIER = "an earlier run"
"""Placeholder path of an object that only the run cache names. A remote need not contain all of these."""

_WRITABLE = re.compile(r"[^%\"'\x00-\x1f\x7f-\U0010ffff]*")
"""Texts that .dvc/config returns as they were written: it interpolates ``%(name)s``, and is written as ASCII."""

COMMITTED = ("dvc.lock", "params.yaml", ".dvc/config", str(verify.KEPT_BY_GIT))
"""Files through which a clone finds what was published."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("set")
def set_remote(
    url: Annotated[str, typer.Argument(help="s3://bucket/folder, or the absolute path of a shared folder")],
    endpoint: Annotated[
        str, typer.Option(help="address of an S3 server other than Amazon's, such as https://host:9000")
    ] = "",
) -> None:
    """Write the remote to .dvc/config, which is committed."""
    from dvc.config import Config

    _check_url(url, endpoint)
    with Config(dvc_dir=".dvc").edit("repo") as config:
        config["remote"][NAME] = {"url": url, **({"endpointurl": endpoint} if endpoint else {})}
    print(f"the remote is now {url}; commit .dvc/config, then `make publish` uploads the results.")


@app.command()
def publish() -> None:
    """Upload every output and run-cache entry that the remote lacks."""
    with _opened("write to") as (repo, remote, where):
        cache = repo.cache.local
        here = {out.md5 for out in _locked()} | run_cache.outputs(run_cache.entries(repo.cache.legacy))
        held = {oid for oid in here | _inner(repo, here) if Path(cache.oid_to_path(oid)).is_file()}
        if not held:
            raise UserError("DVC's cache holds no outputs, so there is nothing to publish; run `make repro`.")
        new = held - set(remote.oids_exist(held))
        for path in (cache.oid_to_path(oid) for oid in new):
            if verify.md5_of(Path(path)) != "".join(Path(path).parts[-2:]).removesuffix(verify.FOLDER):
                raise UserError(f"{path} is damaged; nothing was uploaded. Run `make verify`, which shows the remedy.")
        # A folder's list is sent last, so that its presence implies that of its files.
        for part in sorted(new - set(_folders(new))), sorted(_folders(new)):
            _copy(cache, remote, part, f"uploading to {where}", check=False)
        runs = run_cache.copy(repo.cache.legacy, repo.cloud.get_remote_odb(NAME, hash_name="md5-dos2unix"))
    print(f"{where}: uploaded {len(new)} objects and {runs} runs; {len(held) - len(new)} objects were already there.")
    changed = [file for file in COMMITTED if git("status", "--porcelain", "--", file)[1].strip()]
    if changed:
        print(f"commit {', '.join(changed)}, so that clones can fetch what was published.")


@app.command()
def fetch(
    all_runs: Annotated[
        bool, typer.Option(help="also download what other published runs produced, for the run cache")
    ] = False,
) -> None:
    """Download what dvc.lock names and the run cache, and check it out.

    dvc.lock also names stages that the publisher did not run, such as the default's; these are only counted.
    """
    with _opened("read from") as (repo, remote, where):
        if not LOCK.is_file() and not all_runs:
            raise UserError(
                f"{LOCK}, which names what to fetch, does not exist; commit it where the run was made, and pull "
                "(RUNS=all fetches what every published run produced)."
            )
        runs = run_cache.copy(repo.cloud.get_remote_odb(NAME, hash_name="md5-dos2unix"), repo.cache.legacy)
        forged = run_cache.drop_forged(repo.cache.legacy)
        outs = _locked()
        named = {out.md5: str(out.path) for out in outs}
        if all_runs:
            named |= dict.fromkeys(run_cache.outputs(run_cache.entries(repo.cache.legacy)) - set(named), EARLIER)
        missing = _bring(remote, repo.cache.local, named, where)
        for folder in set(_folders(named)) - missing:
            listed = Path(repo.cache.local.oid_to_path(folder))
            try:
                inner = _entries(listed)
            except UserError:  # its hash is right, so it was published so
                listed.unlink()
                missing.add(folder)
                continue
            named |= {oid: f"{named[folder]}/{path}" for oid, path in inner.items() if oid not in named}
        missing |= _bring(remote, repo.cache.local, named, where)
        absent = missing - set(remote.oids_exist(missing)) if missing else missing
        unpublished = verify.stages_absent(outs, lambda out: out.md5 not in absent)
        published = [out for out in outs if out.stage not in unpublished]
        removed = {out.stage for out in published} - {stage.addressing for stage in repo.index.stages}
        if outs and not published and not all_runs:
            raise UserError(f"{where} has nothing that dvc.lock names; run `make publish` where the run was made.")
        there = [str(out.path) for out in published if out.md5 not in missing and out.stage not in removed]
        if there:  # without targets, DVC would check out everything
            with _graph_read_once(), _unsaved_named():
                repo.checkout(there, allow_missing=True)
        needed = {out.md5 for out in published if out.stage not in removed}
        excused = {out.md5 for out in outs} - needed
        faults = [*_faults(missing - excused, named, remote)]
        faults += [f"{where}/{name} is damaged, so it is not used; delete it there." for name in forged]
    print(f"{where}: {len(named) - len(missing)} objects and {runs - len(forged)} runs are available here.")
    if unpublished:
        print(f"stages of dvc.lock that were not published: {len(unpublished)}, such as {min(unpublished)}.")
    if removed:
        print(f"stages of dvc.lock that params.yaml no longer has: {len(removed)}, such as {min(removed)}.")
    if faults:
        raise UserError("\n".join(faults))


@contextmanager
def _unsaved_named() -> Iterator[None]:
    """Raises: UserError: DVC would have to replace files whose content is saved nowhere."""
    from dvc.exceptions import DvcException

    try:
        yield
    except DvcException as error:
        said, *files = str(error).splitlines()
        if "unsaved files" not in said or not files:
            raise
        names = ", ".join(os.path.relpath(file) for file in files[:3]) + (" and others" if len(files) > 3 else "")
        raise UserError(
            f"{names}: not as in dvc.lock, and saved nowhere; move them away (or give them up with `dvc checkout "
            "--force`), then run `make fetch` again."
        ) from None


@contextmanager
def _graph_read_once() -> Iterator[None]:
    """Let DVC parse dvc.yaml and dvc.lock once, not for each output, which takes it most of a second."""
    from dvc.dvcfile import ProjectFile

    read, found = ProjectFile.stages, dict[str, Any]()

    def once(self: ProjectFile) -> Any:
        if self.path not in found:
            found[self.path] = read.fget(self)  # type: ignore[attr-defined]
        return found[self.path]

    ProjectFile.stages = property(once)  # type: ignore[assignment]
    try:
        yield
    finally:
        ProjectFile.stages = read  # type: ignore[method-assign]


def _bring(remote: Any, cache: Any, named: Iterable[str], where: str) -> set[str]:
    """Copy the objects that the cache lacks; returns those still missing because the remote's are damaged or absent."""

    def lacking(oids: Iterable[str]) -> list[str]:
        return sorted(oid for oid in oids if not Path(cache.oid_to_path(oid)).is_file())

    wanted = lacking(named)
    if wanted:
        _copy(remote, cache, sorted(remote.oids_exist(wanted)), f"downloading from {where}", check=True)
    return set(lacking(wanted))


def _copy(source: Any, target: Any, oids: list[str], doing: str, *, check: bool) -> None:
    """Copy objects that the target lacks; the first error is raised after all have been tried. ``check``: re-read each
    copy and remove it if damaged."""
    from dvc.fs.callbacks import TqdmCallback

    failed: list[BaseException] = []
    if oids:
        with TqdmCallback(desc=doing, unit="file") as bar:
            target.add([source.oid_to_path(oid) for oid in oids], source.fs, oids, callback=bar, check_exists=False,
                       verify=check, on_error=lambda _, error: failed.append(error))  # fmt: skip
    if failed:
        raise failed[0]


def _faults(missing: Iterable[str], named: dict[str, str], remote: Any) -> Iterator[str]:
    """One sentence per object that did not arrive intact."""
    for oid in sorted(missing, key=lambda oid: named[oid]):
        place = remote.fs.unstrip_protocol(remote.oid_to_path(oid))
        if remote.exists(oid):
            yield (
                f"{place} (of {named[oid]}) is damaged; delete it there and run `make publish` where it was made, or "
                "run `make repro` here, which generates it again."
            )
        elif named[oid] != EARLIER:
            yield (
                f"{place} (of {named[oid]}) does not exist; run `make publish` where it was made, or `make repro` "
                "here, which generates it again."
            )


def _locked() -> list[verify.Out]:
    """The outputs that DVC's cache keeps."""
    outs = verify.outputs() if LOCK.is_file() else ()
    return [out for out in outs if not out.path.is_relative_to(verify.KEPT_BY_GIT)]


def _inner(repo: Any, oids: Iterable[str]) -> set[str]:
    """Hashes of the files in those folders whose lists are in the local cache."""
    lists = [repo.cache.local.oid_to_path(oid) for oid in _folders(oids)]
    return {oid for path in lists if Path(path).is_file() for oid in _entries(Path(path))}


def _entries(path: Path) -> dict[str, str]:
    """Hash -> path of each file in a folder's list.

    Raises:
        UserError: the local list is damaged, or names a path outside of the folder.
    """
    try:
        listed = [(entry["md5"], entry["relpath"]) for entry in json.loads(path.read_bytes())]
        if all(run_cache.HASH.fullmatch(oid) and not {"", ".", ".."} & set(inner.split("/")) for oid, inner in listed):
            return dict(listed)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise UserError(f"{path} is damaged; run `make verify`, which shows the remedy.")


def _folders(oids: Iterable[str]) -> list[str]:
    return [oid for oid in oids if oid.endswith(verify.FOLDER)]


def _check_url(url: str, endpoint: str) -> None:
    """Raises: UserError."""
    for name, text in (("URL", url), ("ENDPOINT", endpoint)):
        if not _WRITABLE.fullmatch(text):
            raise UserError(f"{name} contains a percent sign, a quote, or a character outside ASCII; write it without.")
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise UserError(f"{name}={text!r} is not an address ({error}); correct it.") from None
        if parts.username or parts.password or parts.query:
            raise UserError(
                f"{name} contains credentials or a query, but .dvc/config is committed; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment instead."
            )
    if endpoint and not (endpoint.startswith(("http://", "https://")) and urlsplit(endpoint).hostname):
        raise UserError(f"ENDPOINT={endpoint!r} is not the address of a server; write for example https://host:9000.")
    if endpoint and not url.startswith("s3://"):
        raise UserError("ENDPOINT is only for s3:// remotes; leave it out for a folder.")
    if url.startswith("s3://"):
        if not urlsplit(url).netloc:
            raise UserError(f"URL={url!r} names no bucket; write s3://bucket/folder.")
    elif "://" in url or not Path(url).is_absolute():
        raise UserError(
            f"URL={url!r} is neither s3://bucket/folder nor the absolute path of a shared folder; write one of these."
        )
    elif not Path(url).is_dir():
        raise UserError(f"URL={url!r} does not exist on this machine; create that folder, or name another.")


@contextmanager
def _opened(doing: str) -> Iterator[tuple[Any, Any, str]]:
    """The repository, its remote, and the remote's URL.

    Raises:
        UserError: there is no remote, or it cannot be reached, read or written.
    """
    from dvc.repo import Repo

    where = "the remote"
    try:
        with Repo() as repo:
            if NAME not in repo.config["remote"]:
                raise UserError("no remote is set; run `make remote URL=s3://bucket/folder`, and commit .dvc/config.")
            where = repo.config["remote"][NAME]["url"]
            if "://" not in where and not Path(where).is_dir():
                raise UserError(
                    f"{where} does not exist on this machine; mount or create that folder, or set another with `make "
                    "remote URL=…`."
                )
            yield repo, repo.cloud.get_remote_odb(NAME), where
    except UserError:
        raise
    except Exception as error:
        said = _explained(error, where, doing)
        if said is None:
            raise
        raise UserError(said) from None


def _explained(error: BaseException, where: str, doing: str) -> str | None:
    """The meaning and remedy of an error from DVC, s3fs or botocore; None if the error is not a known one."""
    from dvc.exceptions import DvcException

    chain: list[BaseException] = []
    step: BaseException | None = error
    while step is not None and step not in chain:
        chain.append(step)
        step = step.__cause__ or step.__context__
    for one in chain:
        if isinstance(one, OSError) and one.errno in FULL:
            return refusal(one)  # names the file, which is here or there
    names = {type(one).__name__ for one in chain}
    if names & {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}:
        return (
            f"{where}: no credentials were found ({first_line(chain[-1])}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
        )
    if any(isinstance(one, PermissionError) for one in chain):
        return (
            f"{where}: these credentials may not {doing} it ({first_line(error)}); ask its owner for access, or use "
            "others."
        )
    if names & {"EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError", "ReadTimeoutError"}:
        return f"{where}: no answer ({first_line(error)}); check the network and ENDPOINT."
    if any(isinstance(one, FileNotFoundError) for one in chain):
        return f"{where} does not exist ({first_line(error)}); create it, or set another with `make remote URL=…`."
    if isinstance(error, DvcException | OSError):
        return f"{where}: {first_line(error).rstrip('.')}."
    return None


if __name__ == "__main__":
    cli.run(app)
