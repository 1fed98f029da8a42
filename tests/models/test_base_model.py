"""A base model from the hub: a server's refusal is explained in one sentence. A local server replaces the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.models.base import SHIPPED, WANTED, BaseParams, resolve_model, take_weights
from tests.support.http_server import Handler, serve

COMMIT = "0" * 39 + "1"
CONFIG = b'{"model_type": "llama"}'
PROGRAM = (
    "from selfimprove.models.base import BaseParams, resolve_model\n"
    "from selfimprove.core.errors import UserError\n"
    "try:\n"
    f"    print(resolve_model(BaseParams(model='org/model', revision='{COMMIT}')))\n"
    "except UserError as error:\n"
    "    print('refused:', error)\n"
)


@contextmanager
def hub(listing: str | None, download: str | None) -> Iterator[str]:
    """A server that lists and serves ``config.json``, or answers either request with an ``X-Error-Code``."""

    class Hub(Handler):
        def do_GET(self) -> None:
            refusal = listing if self.path.startswith("/api/") else download
            body = CONFIG
            if self.path.startswith("/api/"):
                file = {"type": "file", "path": "config.json", "size": len(CONFIG), "oid": "c" * 40}
                body = json.dumps([file]).encode()
            if refusal is not None:
                self.respond(401 if refusal == "RepoNotFound" else 403, b"{}", {"X-Error-Code": refusal})
            else:
                self.respond(200, body, {"ETag": '"' + "c" * 40 + '"', "X-Repo-Commit": COMMIT})

        do_HEAD = do_GET

    with serve(Hub) as url:
        yield url


def resolved(url: str, cache: Path, **extra: str) -> str:
    environment = {
        **os.environ,
        **extra,
        "HF_ENDPOINT": url,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("listing", "download"), [("GatedRepo", "GatedRepo"), (None, "GatedRepo")])
def test_the_error_for_a_gated_repository_names_the_page_to_accept_its_licence(
    listing: str | None, download: str | None, tmp_path: Path
) -> None:
    with hub(listing, download) as url:
        said = resolved(url, tmp_path)
    assert said.startswith(
        "refused: base: 'org/model' is gated: accept the licence at https://huggingface.co/org/model"
    )
    assert "HF_TOKEN" in said


def test_a_missing_or_private_repository_is_not_called_gated(tmp_path: Path) -> None:
    with hub("RepoNotFound", "RepoNotFound") as url:
        said = resolved(url, tmp_path)
    assert said.startswith("refused: base: the hub has no 'org/model' that you can access")


def test_a_socks_proxy_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with hub(None, None) as url:
        said = resolved(url, tmp_path, ALL_PROXY="socks5://127.0.0.1:9", NO_PROXY="", no_proxy="")
    assert said.startswith("refused: the environment's proxy or certificate settings can't be used (Using SOCKS proxy")
    assert "unset ALL_PROXY" in said


@pytest.mark.parametrize("token", [{}, {"HF_TOKEN": ""}], ids=["no token", "empty token"])
def test_an_accessible_repository_is_fetched(tmp_path: Path, token: dict[str, str]) -> None:
    with hub(None, None) as url:
        folder = Path(resolved(url, tmp_path, **token))
    assert (folder / "config.json").read_bytes() == CONFIG


def test_a_users_own_folder_is_copied_and_files_in_the_hubs_cache_are_linked(tmp_path: Path) -> None:
    """DVC makes linked files read-only, so a user's own files must not be linked."""
    source = tmp_path / "mine"
    source.mkdir()
    for name in ("model.safetensors", "config.json"):
        (source / name).write_text(name)
    for own, links in ((True, 1), (False, 2)):
        take_weights(source, tmp_path / str(own), own=own)
        assert (tmp_path / str(own) / "model.safetensors").read_text() == "model.safetensors"
        assert (source / "model.safetensors").stat().st_nlink == links


def test_a_missing_shipped_model_is_reported_only_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    named = BaseParams(model=SHIPPED)  # valid as long as no method starts from it
    with pytest.raises(UserError, match="git checkout models/pretrained"):
        resolve_model(named)


def test_a_model_s_own_code_is_kept_if_its_configuration_names_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, text in {
        "config.json": "{}", "model.safetensors": "", "modeling_own.py": "code", "layers.py": "code",
    }.items():  # fmt: skip
        (source / name).write_text(text)
    take_weights(source, tmp_path / "plain", own=True)
    assert not list((tmp_path / "plain").glob("*.py"))
    (source / "config.json").write_text('{"auto_map": {"AutoConfig": "modeling_own.OwnConfig"}}')
    take_weights(source, tmp_path / "own", own=True)
    assert sorted(file.name for file in (tmp_path / "own").glob("*.py")) == ["layers.py", "modeling_own.py"]
    assert "*.py" in WANTED
