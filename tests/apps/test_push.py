"""``make push``: the card describes the row, uploads need confirmation, a local hub gets exactly the row's files."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.push import _licence
from selfimprove.models.adapters import complete, take_adapter
from selfimprove.models.base import BaseParams
from selfimprove.models.card import escaped, fenced
from tests.models.test_base_adapter import make_adapter
from tests.pipeline.workbench import write_params
from tests.support.http_server import Handler, serve
from tests.support.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "2" * 40
TOKEN = "hf_a_secret_of_the_test"


@dataclass
class Hub:
    """A stand-in for the hub that handles the calls for creating a repository and committing files."""

    url: str = ""
    token: str = TOKEN
    stores: bool = True
    created: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, body: bytes) -> Any:
        if method == "PUT":
            self.stored[path.rpartition("/")[2]] = body
            return {}
        told: Any = (
            [json.loads(line) for line in body.splitlines()] if path.endswith("commit/main") else json.loads(body)
        )
        if path == "/api/repos/create":
            if told["organization"] == "gone":
                raise ConnectionAbortedError
            self.created = told
            return {"url": f"{self.url}/owner/name"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path.endswith("preupload/main"):
            large = lambda name: "lfs" if name.endswith(".safetensors") else "regular"  # noqa: E731
            modes = [{"path": f["path"], "uploadMode": large(f["path"]), "shouldIgnore": False} for f in told["files"]]
            return {"files": modes}
        if path.endswith("objects/batch"):
            upload = [
                {**one, "actions": {"upload": {"href": f"{self.url}/store/{one['oid']}"}}} for one in told["objects"]
            ]
            return {"transfer": "basic", "objects": upload}
        assert path == "/api/models/owner/name/commit/main", path
        for row in told[1:]:
            value = row["value"]
            self.files[value["path"]] = (
                base64.b64decode(value["content"]) if row["key"] == "file" else self.stored[value["oid"]]
            )
        return {"commitUrl": f"{self.url}/owner/name/commit/{COMMIT}", "commitOid": COMMIT}


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()

    class Answers(Handler):
        def do_POST(self) -> None:
            body = self.body()
            put = self.command == "PUT"
            allowed = hub.stores if put else self.headers.get("Authorization") == f"Bearer {hub.token}"
            try:
                found = hub.answer(self.command, self.path.partition("?")[0], body) if allowed else {}
            except ConnectionAbortedError:
                return
            self.respond(200 if allowed else 403, json.dumps(found).encode())

        do_PUT = do_POST

    with serve(Answers) as hub.url:
        yield hub


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which ``rise/iter1`` is an adapter of a base from the hub, and ``rise/iter2`` of another row."""
    folder = tmp_path_factory.mktemp("checkout")
    base = make_tiny_model(folder / "models" / "rise" / "start", hidden=32)
    for name in ("iter1", "iter2"):
        out = folder / "models" / "rise" / name
        take_adapter(make_adapter(base, folder / "peft"), out)
        complete(base if name == "iter1" else shutil.copytree(base, out.with_name("base")), out, "float32")
    metrics = {"m1@t1": {"mean": 0.25, "se": 0.0125, "n": 500}, "counters": {"<img src=x>|": {"mean": 1, "se": 0.5}}}
    (folder / "results" / "rise" / "iter1").mkdir(parents=True)
    (folder / "results" / "rise" / "iter1" / "metrics.json").write_text(json.dumps(metrics))
    (folder / "data").mkdir()
    shutil.copyfile(ROOT / "data" / "sources.yaml", folder / "data" / "sources.yaml")
    return folder


@pytest.fixture
def checkout(trained: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(trained, tmp_path / "checkout"))
    params = {
        "base": {"rise": {"model": "lab/base-7b", "revision": COMMIT}},
        "rise": {"tasks": {"source": "gsm8k"}, "rows": {"iter1": {"train": {"lora": {"rank": 2}}}}},
    }
    write_params(folder, params)
    return folder


def push(folder: Path, *arguments: str, hub: Hub | None = None, token: str | None = TOKEN) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "hf")}
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        environment.pop(name, None)
    environment |= {"HF_TOKEN": token} if token else {}
    environment |= {"HF_ENDPOINT": hub.url} if hub else {}
    command = [sys.executable, "-m", "selfimprove.apps.push", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_without_confirmation_nothing_is_uploaded_and_the_card_describes_the_row(checkout: Path, hub: Hub) -> None:
    done = push(checkout, "models/rise/iter1", "--to", "owner/name", hub=hub, token=None)
    assert done.returncode == 0, done.stderr
    assert "Nothing was uploaded. CONFIRM=yes uploads these files to owner/name" in done.stdout
    assert "adapter_model.safetensors" in done.stdout
    assert not hub.created
    card = (checkout / ".scratch/push/owner--name/README.md").read_text()
    for part in (
        "base_model: lab/base-7b", "library_name: peft", f"at revision {COMMIT}", "arXiv 2407.18219",
        "GSM8K, grade-school word problems \\(Cobbe et al. 2021\\)", "(licence: MIT)", "rank: 2", "Commit of the code:",
        "| m1@t1 | 0.25 | 0.013 | 500 |", 'PeftModel.from_pretrained(base, "owner/name")', "## Licence",
    ):  # fmt: skip
        assert part in card, part
    assert "<img" not in card.replace("\\<img", "")
    assert str(checkout) not in card


def test_a_confirmed_push_uploads_an_adapter_with_its_public_base_and_no_secret(checkout: Path, hub: Hub) -> None:
    done = push(checkout, "models/rise/iter1/", "--to", "owner/name", "--confirm", hub=hub)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"pushed: {hub.url}/owner/name/commit/{COMMIT}"
    assert hub.created["name"] == "name"
    assert hub.created["organization"] == "owner"
    assert hub.created.get("private") or hub.created.get("visibility") == "private"
    row = checkout / "models" / "rise" / "iter1"
    kept = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    present = {name for name in kept if (row / name).is_file()}
    assert set(hub.files) == {"README.md", "adapter_model.safetensors", "adapter_config.json"} | present
    assert hub.files["adapter_model.safetensors"] == (row / "adapter_model.safetensors").read_bytes()
    config = json.loads(hub.files["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"]) == ("lab/base-7b", COMMIT)
    assert not [name for name, content in hub.files.items() if TOKEN.encode() in content]


@pytest.mark.slow
def test_an_adapter_of_an_unpublished_base_is_pushed_as_full_weights(checkout: Path, hub: Hub) -> None:
    done = push(checkout, "models/rise/iter2", "--to", "owner/name", "--confirm", "--public", hub=hub)
    assert done.returncode == 0, done.stderr
    assert hub.created.get("private") is not True
    assert hub.created.get("visibility") != "private"
    assert "model.safetensors" in hub.files
    assert not [name for name in hub.files if name.startswith("adapter")]
    card = hub.files["README.md"].decode()
    assert "library_name: transformers" in card
    assert "Not evaluated yet." in card


@pytest.mark.parametrize(
    ("arguments", "token", "sentence"),
    [
        (("models/rise/iter1", "--to", "owner/name", "--confirm"), None, "push: HF_TOKEN is not set"),
        (("models/rise/iter1", "--to", "owner/name", "--confirm"), "wrong", "the hub refused owner/name (status 403)"),
        (
            ("models/rise/iter1", "--to", "gone/name", "--confirm"),
            TOKEN,
            "the hub cannot be reached (Remote",
        ),
        (("models/rise/iter1", "--to", "name"), None, "push: TO='name' is not a repository name; write owner/name."),
        (("models/rise/iter1", "--to", "owner/a--b"), None, "push: TO: Cannot have -- or .. in repo_id: 'owner/a--b';"),
        (("models/rise/iter9", "--to", "owner/name"), None, "models/rise/iter9 contains no model (config.json)"),
        (("results/rise/iter1", "--to", "owner/name"), None, "is not the folder of a trained row"),
        (("models/../../x", "--to", "owner/name"), None, "is not the folder of a trained row"),
        (("", "--to", ""), None, "push: MODEL and TO are required"),
    ],
)
def test_a_push_that_is_invalid_or_refused_gives_one_sentence(
    checkout: Path, hub: Hub, arguments: tuple[str, ...], token: str | None, sentence: str
) -> None:
    done = push(checkout, *arguments, hub=hub, token=token)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr
    assert not hub.files


@pytest.mark.slow
def test_a_push_whose_weights_the_hub_s_storage_refuses_gives_one_sentence(checkout: Path, hub: Hub) -> None:
    hub.stores = False
    done = push(checkout, "models/rise/iter1", "--to", "owner/name", "--confirm", hub=hub)
    assert done.returncode == 2, done.stderr
    said = "push: the upload to owner/name failed (Error while uploading 'adapter_model.safetensors' to the Hub); run"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not hub.files


def test_markdown_in_the_name_of_a_base_does_not_become_a_link(checkout: Path) -> None:
    write_params(checkout, {"base": {"rise": {"model": "x](http://evil)/<b>", "revision": COMMIT}}})
    assert push(checkout, "models/rise/iter1", "--to", "owner/name").returncode == 0
    card = (checkout / ".scratch/push/owner--name/README.md").read_text()
    assert "**Base:** a model from a folder" in card
    assert "evil" not in card


def test_untrusted_text_is_escaped_and_fenced() -> None:
    assert escaped("a|b <script>\n`x` [l](u)\x1b[31m") == r"a\|b \<script\> \`x\` \[l\]\(u\) \[31m"
    assert fenced("a: ```\nb\x1b: 1", "yaml") == "````yaml\na: ```\nb: 1\n````"


@pytest.mark.parametrize(
    ("damaged", "pattern", "text", "sentence"),
    [
        ("results/rise/iter1/metrics.json", r"[\s\S]+", "[]", "results/rise/iter1/metrics.json is not a JSON object"),
        ("params.yaml", r"(?m)^rise:(\n .*)+", "rise: null", "params.yaml: rise: must be a section with keys"),
        ("models/rise/iter1/config.json", r"}\s*\Z", "", "models/rise/iter1/config.json is not JSON"),
        ("models/rise/iter1/tokenizer.json", r"[\s\S]+", "", "models/rise/iter1/tokenizer.json is not JSON"),
    ],
)
def test_a_push_with_damaged_files_gives_one_sentence_and_leaves_no_folder(
    checkout: Path, damaged: str, pattern: str, text: str, sentence: str
) -> None:
    file = checkout / damaged
    file.write_text(re.sub(pattern, text, file.read_text(), count=1))
    done = push(checkout, "models/rise/iter1", "--to", "owner/name")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert sentence in done.stderr
    assert not (checkout / ".scratch/push").exists()


def test_a_push_of_truncated_weights_is_refused(checkout: Path) -> None:
    file = checkout / "models/rise/iter1/adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    done = push(checkout, "models/rise/iter1", "--to", "owner/name")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "models/rise/iter1/adapter_model.safetensors is not an intact safetensors file" in done.stderr
    assert not (checkout / ".scratch/push").exists()


def test_the_card_names_the_licence_that_the_base_s_own_card_declares(tmp_path: Path) -> None:
    assert _licence(BaseParams(model=str(ROOT / "models/pretrained"))) == "apache-2.0"
    assert _licence(BaseParams()) == "apache-2.0"  # from scratch: the repository's
    declared = {"---\nlicense: mit\n---\n": "mit", "---\nlicense: other\n---\n": None, "license: mit": None}
    for text, licence in declared.items():
        (tmp_path / "README.md").write_text(text)
        assert _licence(BaseParams(model=str(tmp_path))) == licence
