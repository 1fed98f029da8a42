"""Declared data sources: fetched from a mirror or by HTTP, verified, stored completely or not at all."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.sources import SOURCES, fetch, load_sources, mirror_folder
from tests.support.http_server import Handler, Server
from tests.support.real_data import real, real_sources

ROOT = Path(__file__).resolve().parents[2]
ROWS = b'{"question": "q", "answer": "#### 1"}\n'


def declare(folder: Path, url: Any, *, content: Any = ROWS, path: str = "gsm8k/train.jsonl") -> Any:
    file = folder / "sources.yaml"
    file.write_text(
        f"gsm8k:\n  about: rows\n  licence: MIT\n  files:\n"
        f"    - {{path: {path}, url: '{url}', sha256: {sha256(content).hexdigest()}}}\n"
    )
    return file


@pytest.fixture
def server() -> Iterator[Any]:
    """A local HTTP server; ``replies`` is a list of (status, body, whether it is cut); the last one is repeated."""

    class Replies(Handler):
        server: Any

        def do_GET(self) -> None:
            self.server.asked.append(self.path)
            replies = self.server.replies
            status, body, cut = replies.pop(0) if len(replies) > 1 else replies[0]
            self.respond(status, body, cut=cut)

    server: Any = Server(Replies)
    server.asked, server.replies = [], [(200, ROWS, False)]
    server.url += "/train.jsonl"
    server.start()
    yield server
    server.stop()


def left_in(folder: Path) -> Any:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_a_download_is_verified_and_reused_while_intact(server: Any, tmp_path: Path) -> None:
    sources, folder = declare(tmp_path, server.url), tmp_path / "data"
    (path,) = fetch("gsm8k", folder, sources_file=sources)
    assert path.read_bytes() == ROWS
    assert left_in(folder) == ["train.jsonl"]
    assert fetch("gsm8k", folder, sources_file=sources) == [path]
    assert len(server.asked) == 1
    path.write_bytes(b"spoilt")
    fetch("gsm8k", folder, sources_file=sources)
    assert path.read_bytes() == ROWS


def test_a_download_follows_a_redirection_to_the_file(server: Any, tmp_path: Path) -> None:
    """As hosts of data sets send to their storage."""

    class Moved(Handler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", server.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

    moved: Any = Server(Moved)
    moved.start()
    try:
        (path,) = fetch("gsm8k", tmp_path / "data", sources_file=declare(tmp_path, f"{moved.url}/old"), backoff=0)
    finally:
        moved.stop()
    assert path.read_bytes() == ROWS
    assert server.asked == ["/train.jsonl"]


def test_transient_failures_are_retried(server: Any, tmp_path: Path) -> None:
    server.replies = [(503, b"", False), (429, b"", False), (200, ROWS, True), (200, ROWS, False)]
    (path,) = fetch("gsm8k", tmp_path / "data", sources_file=declare(tmp_path, server.url), backoff=0)
    assert path.read_bytes() == ROWS
    assert len(server.asked) == 4


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (500, 3)])
def test_permanent_failures_are_reported_after_retries_of_server_errors_only(
    server: Any, tmp_path: Path, status: int, asked: int
) -> None:
    server.replies = [(status, b"", False)]
    with pytest.raises(
        UserError, match=rf"can't be fetched \(status {status}\); check the network, or set DATA_MIRROR"
    ):
        fetch("gsm8k", tmp_path / "data", sources_file=declare(tmp_path, server.url), tries=3, backoff=0)
    assert len(server.asked) == asked
    assert left_in(tmp_path / "data") == []


def test_an_unreachable_server_is_reported_in_one_sentence(server: Any, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"can't be fetched \(ConnectError.*DATA_MIRROR") as caught:
        fetch("gsm8k", tmp_path / "data", sources_file=declare(tmp_path, server.url), tries=2, backoff=0)
    assert "\n" not in str(caught.value)


def test_a_file_with_a_wrong_hash_is_refused_and_not_kept(server: Any, tmp_path: Path) -> None:
    sources = declare(tmp_path, server.url, content=b"other")
    with pytest.raises(UserError, match=r"train\.jsonl: SHA-256 is [0-9a-f]{64}, .*sources\.yaml declares"):
        fetch("gsm8k", tmp_path / "data", sources_file=sources)
    assert left_in(tmp_path / "data") == []


@pytest.mark.parametrize("rows", [ROWS + b'{"question": "q', ROWS + b"\xff\n"])
def test_a_torn_or_undecodable_line_is_reported_with_its_url_and_number(server: Any, tmp_path: Path, rows: Any) -> None:
    server.replies = [(200, rows, False)]
    with pytest.raises(UserError, match=r"^http://127\.0\.0\.1:\d+/train\.jsonl, line 2: not ") as caught:
        fetch("gsm8k", tmp_path / "data", sources_file=declare(tmp_path, server.url, content=rows))
    assert ".part" not in str(caught.value)
    assert left_in(tmp_path / "data") == []


def test_a_mirror_is_used_without_network_access(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = tmp_path / "mirror"
    (mirror / "gsm8k").mkdir(parents=True)
    sources = declare(tmp_path, server.url)
    with pytest.raises(UserError, match=r"mirror/gsm8k/train\.jsonl can't be read .*DATA_MIRROR"):
        fetch("gsm8k", tmp_path / "data", sources_file=sources, mirror=mirror)
    (mirror / "gsm8k" / "train.jsonl").write_bytes(b"other")
    with pytest.raises(UserError, match="SHA-256"):
        fetch("gsm8k", tmp_path / "data", sources_file=sources, mirror=mirror)
    (mirror / "gsm8k" / "train.jsonl").write_bytes(ROWS)
    monkeypatch.setenv("DATA_MIRROR", str(mirror))
    (path,) = fetch("gsm8k", tmp_path / "data", sources_file=sources, mirror=mirror_folder())
    assert path.read_bytes() == ROWS
    assert server.asked == []
    monkeypatch.delenv("DATA_MIRROR")
    assert mirror_folder() is None


def test_invalid_declarations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="declares no source 'gsm'; choose one of gsm8k"):
        fetch("gsm", tmp_path, sources_file=declare(tmp_path, "http://x"))
    for path in ("../up.jsonl", "/etc/passwd"):
        with pytest.raises(UserError, match=r"sources\.yaml: field 'gsm8k\.files\.0\.path'"):
            fetch("gsm8k", tmp_path, sources_file=declare(tmp_path, "http://x", path=path))
    with pytest.raises(UserError, match=r"field 'gsm8k\.files\.0\.url'"):
        fetch("gsm8k", tmp_path, sources_file=declare(tmp_path, "file:///etc/passwd"))
    (tmp_path / "sources.yaml").write_text("a: [")
    with pytest.raises(UserError, match="line 1: not YAML"):
        load_sources(tmp_path / "sources.yaml")
    with pytest.raises(UserError, match="does not exist"):
        load_sources(tmp_path / "none.yaml")


def test_the_repository_declares_gsm8k_and_math() -> None:
    sources = load_sources(ROOT / SOURCES)
    assert [file.path for file in sources["gsm8k"].files] == ["gsm8k/train.jsonl", "gsm8k/test.jsonl"]
    assert [file.path for file in sources["math"].files] == ["math/test.jsonl"]
    assert sources["gsm8k"].licence == sources["math"].licence == "MIT"
    assert all(source.licence.startswith(("MIT", "CC BY-SA 4.0")) for source in sources.values())


@pytest.mark.parametrize("name", sorted(load_sources(ROOT / SOURCES)))
def test_the_real_files_are_the_declared_ones(name: str, tmp_path: Path) -> None:
    for path in fetch(name, tmp_path, sources_file=ROOT / SOURCES, mirror=real_sources(name)):
        assert path.stat().st_size > 10_000


def test_a_test_that_needs_a_missing_real_file_is_skipped_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_MIRROR", str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/train.jsonl").write_bytes(ROWS)
    assert real("gsm8k/train.jsonl") == tmp_path / "gsm8k/train.jsonl"
    said = r"/gsm8k/test\.jsonl does not exist; set DATA_MIRROR to a folder that contains gsm8k/test\.jsonl"
    with pytest.raises(pytest.skip.Exception, match=said):
        real_sources("gsm8k")  # one of its two files is there
    (tmp_path / "gsm8k/test.jsonl").write_bytes(ROWS)
    assert real_sources("gsm8k") == tmp_path


def test_a_file_without_a_url_is_taken_from_a_mirror_or_reported(tmp_path: Path) -> None:
    sources = tmp_path / "sources.yaml"
    sources.write_text(
        "made:\n  about: rows\n  licence: MIT\n  files:\n"
        f"    - {{path: made/rows.jsonl, sha256: {sha256(ROWS).hexdigest()}}}\n"
    )
    with pytest.raises(UserError, match=r"made/rows\.jsonl of made cannot be downloaded; set DATA_MIRROR"):
        fetch("made", tmp_path / "data", sources_file=sources)
    assert left_in(tmp_path / "data") == []
    with pytest.raises(
        UserError, match=r"rows\.jsonl can't be read .*; put it into the folder that DATA_MIRROR names\.$"
    ):
        fetch("made", tmp_path / "data", mirror=tmp_path / "mirror", sources_file=sources)
    (tmp_path / "mirror" / "made").mkdir(parents=True)
    (tmp_path / "mirror" / "made" / "rows.jsonl").write_bytes(ROWS)
    (path,) = fetch("made", tmp_path / "data", mirror=tmp_path / "mirror", sources_file=sources)
    assert path.read_bytes() == ROWS
