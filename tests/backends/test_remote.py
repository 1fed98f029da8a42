"""One clone of the smoke profile publishes its results and another fetches them, over S3's protocol on localhost.

Runs in the environment of ``make test-backends-remote``: DVC's own S3 client and moto's server. The commands are the
make targets that users run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer
from ruamel.yaml import YAML

from tests.support.repo_copy import ROOT, copy_short, environment, run

pytestmark = [pytest.mark.backend, pytest.mark.timeout(1500)]

BUCKET, URL = "results", "s3://results/selfimprove"
KEY, SECRET = "AKIAPUBLISHER0000001", "a-secret-that-no-file-may-hold"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
METHOD = "METHOD=spin"


def make(folder: Path, *words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
    """Run make in the folder, with credentials unless ``more`` overrides them."""
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "MAKEFLAGS": "", "AWS_MAX_ATTEMPTS": "1"}
    return run(folder, "make", "--no-print-directory", *words, check=check, timeout=600, **keys | more)


def refused(folder: Path, *words: str, **more: str) -> str:
    """The message of a make that fails: one sentence, no traceback."""
    done = make(folder, *words, check=False, **more)
    assert done.returncode
    said = [line for line in done.stderr.splitlines() if not re.match(r"make(\[\d+\])?: \*\*\*", line)]
    assert len(said) == 1, done.stderr
    return said[0]


def ran(output: str) -> set[str]:
    return set(re.findall(r"Running stage '([^']+)'", output)) - {"inputs"}


def settle(folder: Path) -> Path:
    """Link this repository's environments into a copy or clone, and make its locks older than them."""
    for name in (".venv", ".venvs"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    (folder / ".git/info/exclude").write_text(".venv\n.venvs\n")
    for file in (folder / "requirements").iterdir():
        os.utime(file, (0, 0))
    return folder


def clone(source: Path, target: Path) -> Path:
    run(target.parent, "git", "clone", "--quiet", str(source), str(target))
    return settle(target)


def dvc(folder: Path, *words: str) -> str:
    path = f"{folder / '.venv/bin'}{os.pathsep}{environment()['PATH']}"
    return run(folder, str(folder / ".venv/bin/dvc"), *words, PATH=path).stdout


def seeded(folder: Path, seed: int) -> None:
    params = folder / "params.yaml"
    params.write_text(re.sub(r"seed: \d+", f"seed: {seed}", params.read_text(), count=1))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def s3(endpoint: str) -> Any:
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    client.create_bucket(Bucket=BUCKET)
    return client


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory, endpoint: str, s3: Any) -> Path:
    """A copy that has run SPIN's data stage under another seed, then SPIN, and has published both."""
    folder = settle(copy_short(tmp_path_factory.mktemp("publisher") / "repo"))
    seeded(folder, 18)
    dvc(folder, "repro", "spin-data")
    seeded(folder, 17)
    make(folder, "repro", METHOD)
    make(folder, "remote", f"URL={URL}", f"ENDPOINT={endpoint}")
    said = make(folder, "publish").stdout
    assert (
        "commit dvc.lock, params.yaml, .dvc/config, results/headline, so that clones can fetch what was published"
        in said
    )
    run(folder, "git", "add", "--all")
    run(folder, *GIT, "commit", "--quiet", "-m", "results")
    return folder


@pytest.fixture(scope="module")
def fetched(publisher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = clone(publisher, tmp_path_factory.mktemp("fetched") / "repo")
    said = make(folder, "fetch", "RUNS=all").stdout
    # The committed lock also names the default's stages of the other methods, which the publisher has not run.
    assert re.search(r"^stages of dvc.lock that were not published: \d+, such as agent_r-", said, re.MULTILINE), said
    return folder


def test_a_clone_that_has_fetched_runs_no_stage_and_shows_the_comparison_report_and_page(fetched: Path) -> None:
    done = make(fetched, "repro", METHOD)
    assert ran(done.stdout) == set()
    assert "iter0" in done.stdout
    assert run(fetched, "git", "status", "--porcelain").stdout == ""  # dvc.lock is unchanged, too
    run(fetched, str(ROOT / ".venv/bin/python"), "-m", "selfimprove.pipeline.verify")
    compared = make(fetched, "compare").stdout  # by the main environment's DVC, which lacks S3 support
    assert "±" in compared
    assert "workspace" not in compared  # no uncommitted changes
    make(fetched, "report")
    make(fetched, "page")
    assert "iter0" in (fetched / "report/index.html").read_text()
    assert (fetched / "report/dvc/index.html").is_file()


def test_a_run_published_under_another_seed_is_restored_from_the_run_cache(fetched: Path) -> None:
    seeded(fetched, 18)
    assert ran(dvc(fetched, "repro", "spin-data")) == set()
    seeded(fetched, 19)
    assert ran(dvc(fetched, "repro", "spin-data")) == {"spin-data"}  # not published
    run(fetched, "git", "checkout", "--quiet", "params.yaml", "dvc.lock")


def test_publishing_again_uploads_nothing(publisher: Path) -> None:
    assert re.search(
        r": uploaded 0 objects and 0 runs; [1-9]\d* objects were already there", make(publisher, "publish").stdout
    )


def test_no_file_contains_a_credential(publisher: Path, fetched: Path) -> None:
    for folder in (publisher, fetched):
        make(folder, "remote", f"URL={URL}", "ENDPOINT=http://person:word@127.0.0.1:1", check=False)
        files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
        assert len(files) > 500
        words = [word.encode() for word in (KEY, SECRET, "person:word")]
        assert [file for file in files if any(word in file.read_bytes() for word in words)] == []


def test_a_damaged_object_is_reported_and_not_fetched_and_a_run_recreates_it(
    publisher: Path, s3: Any, tmp_path: Path
) -> None:
    path = "results/summary/spin.json"
    entry = re.search(rf"path: {path}\n(?:.*\n)*?\s+md5: (\w+)", (publisher / "dvc.lock").read_text())
    assert entry is not None
    key = f"selfimprove/files/md5/{entry[1][:2]}/{entry[1][2:]}"
    whole = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    s3.put_object(Bucket=BUCKET, Key=key, Body=whole.replace(b"1", b"2"))
    folder = clone(publisher, tmp_path / "repo")
    said = refused(folder, "fetch")
    assert f"s3://{BUCKET}/{key} (of {path}) is damaged; delete it there" in said
    assert not (folder / path).exists()
    assert (folder / "results/spin/iter0/metrics.json").is_file()  # everything else is fetched
    assert ran(make(folder, "repro", METHOD).stdout) == {"spin-report"}
    assert (folder / path).read_bytes() == whole
    s3.delete_object(Bucket=BUCKET, Key=key)
    assert f"(of {path}) does not exist" in refused(clone(publisher, tmp_path / "other"), "fetch")
    assert ": uploaded 1 objects and 0 runs" in make(publisher, "publish").stdout
    assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == whole


def test_a_damaged_file_is_not_published(publisher: Path, endpoint: str, s3: Any, tmp_path: Path) -> None:
    s3.create_bucket(Bucket="other")
    folder = clone(publisher, tmp_path / "repo")
    make(folder, "fetch")
    make(folder, "remote", "URL=s3://other/x", f"ENDPOINT={endpoint}")
    cache = [file for file in (folder / ".dvc/cache/files/md5").rglob("*") if file.is_file()]
    for victim in next(file for file in cache if not file.suffix), next(file for file in cache if file.suffix):
        whole = victim.read_bytes()
        victim.chmod(0o644)
        victim.write_bytes(b"damaged")
        assert f"{victim.relative_to(folder / '.dvc/cache')} is damaged" in refused(folder, "publish")
        victim.write_bytes(whole)
    assert s3.list_objects_v2(Bucket="other")["KeyCount"] == 0


def test_missing_permissions_on_a_remote_are_reported_in_one_sentence(
    publisher: Path, endpoint: str, s3: Any, tmp_path: Path
) -> None:
    s3.create_bucket(Bucket="readonly")
    iam = boto3.client(
        "iam", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    iam.create_user(UserName="reader")
    made = iam.create_access_key(UserName="reader")["AccessKey"]
    allowed = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
    reader = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
    folder = clone(publisher, tmp_path / "repo")
    requests.post(f"{endpoint}/moto-api/reset-auth", data=b"0", timeout=10)  # from here on, it checks credentials
    try:
        make(folder, "fetch", **reader)
        make(folder, "remote", "URL=s3://readonly/x", f"ENDPOINT={endpoint}")
        assert "s3://readonly/x: these credentials may not write to it" in refused(folder, "publish", **reader)
        run(folder, "git", "checkout", "--quiet", ".dvc/config")
        shutil.rmtree(folder / ".dvc/cache")
        assert f"{URL}: these credentials may not read from it" in refused(
            folder, "fetch"
        )  # with a key unknown to the server
    finally:
        requests.post(f"{endpoint}/moto-api/reset-auth", data=b"1000000000", timeout=10)


def test_remote_configuration_errors_are_reported_in_one_sentence(publisher: Path, tmp_path: Path) -> None:
    folder = clone(publisher, tmp_path / "repo")
    none = {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(folder),
    }
    assert "no credentials were found" in refused(folder, "fetch", **none)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    make(folder, "remote", f"URL={URL}", f"ENDPOINT=http://127.0.0.1:{port}")
    assert f"{URL}: no answer" in refused(folder, "fetch")
    for words, said in (
        (["URL=s3://name:word@bucket/x"], "URL contains credentials"),
        (["URL=gs://bucket/x"], "is neither s3://bucket/folder nor the absolute path"),
        (["URL=s3://"], "names no bucket"),
        (["URL=s3://bucket/%(x)s"], "URL contains a percent sign"),
        ([f"URL={URL}", "ENDPOINT=http://[::1"], "is not an address"),
        (["URL=/no/such/folder"], "does not exist on this machine"),
        ([f"URL={URL}", "ENDPOINT=localhost:9000"], "is not the address of a server"),
        ([f"URL={tmp_path}", "ENDPOINT=https://h:9000"], "ENDPOINT is only for s3:// remotes"),
        ([f"URL={tmp_path}/ü"], "a character outside ASCII"),
    ):
        assert said in refused(folder, "remote", *words)
    run(folder, "git", "checkout", "--quiet", ".dvc/config")
    (folder / "dvc.lock").unlink()
    assert "dvc.lock, which names what to fetch, does not exist" in refused(folder, "fetch")
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    assert "no remote is set; run `make remote" in refused(folder, "fetch")


def test_a_missing_bucket_is_reported_and_a_shared_folder_needs_no_server(
    publisher: Path, fetched: Path, endpoint: str, tmp_path: Path
) -> None:
    make(fetched, "remote", "URL=s3://nobody/x", f"ENDPOINT={endpoint}")
    assert "s3://nobody/x does not exist" in refused(fetched, "publish")
    (tmp_path / "shared").mkdir()
    make(fetched, "remote", f"URL={tmp_path / 'shared'}")
    empty = clone(fetched, tmp_path / "empty")
    make(empty, "remote", f"URL={tmp_path / 'shared'}")
    assert "has nothing that dvc.lock names; run `make publish`" in refused(empty, "fetch")
    (tmp_path / "shared").rename(tmp_path / "unmounted")
    for words in ("publish", "fetch"):
        assert "shared does not exist on this machine; mount or create" in refused(fetched, words)
    (tmp_path / "unmounted").rename(tmp_path / "shared")
    make(fetched, "publish")
    folder = clone(publisher, tmp_path / "repo")
    make(folder, "remote", f"URL={tmp_path / 'shared'}")
    lock = YAML(typ="safe").load(folder / "dvc.lock")  # as after a run with an iteration that was removed later
    removed = deepcopy(lock["stages"]["spin-convert@iter0"])
    for out in removed["outs"]:
        out["path"] = out["path"].replace("iter0", "iter9")
    lock["stages"]["spin-convert@iter9"] = removed
    YAML(typ="safe").dump(lock, folder / "dvc.lock")
    said = make(folder, "fetch").stdout
    assert "stages of dvc.lock that params.yaml no longer has: 1, such as spin-convert@iter9." in said
    assert not (folder / "data/spin/iter9").exists()
    own = folder / "results/spin/iter0/metrics.json"
    own.unlink()  # a link to DVC's cache
    own.write_text("a result of my own")
    assert "results/spin/iter0/metrics.json: not as in dvc.lock, and saved nowhere" in refused(folder, "fetch")
    assert own.read_text() == "a result of my own"
    own.unlink()
    make(folder, "fetch")
    assert "RUNS=every is unknown; the only value is: all" in refused(folder, "fetch", "RUNS=every")
    assert ran(make(folder, "repro", METHOD).stdout) == set()
