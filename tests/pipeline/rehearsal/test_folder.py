"""A rehearsal's folder: it runs the repository's own code and changes none of the user's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from selfimprove.envs.qa.tools.replay import ReplaySearch, read_snippets
from selfimprove.methods.spin.chats import read_chats
from selfimprove.pipeline.rehearsal import stand_in
from selfimprove.pipeline.rehearsal.folder import (
    CHATS,
    LINKED,
    SNIPPETS,
    lay_out,
    link_named_files,
    make_chats,
    make_snippets,
)
from tests.support.repo_copy import ROOT, copy_repo, run

COMMAND = ("python", "-m", "selfimprove.pipeline.rehearsal")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repo(tmp_path_factory.mktemp("repo"), "default")


@pytest.mark.slow
def test_stages_run_in_the_folder_leave_the_repository_s_params_lock_and_outputs_unchanged(repo: Path) -> None:
    folder = repo / ".rehearsal/smoke"
    lay_out(folder, repo)
    run(folder, "python", "-m", "selfimprove.pipeline.profiles", "default", check=False)  # profiles are not linked
    (folder / "params.yaml").write_text((ROOT / "profiles/default.yaml").read_text().replace("seed: 17", "seed: 18"))
    run(folder, "dvc", "repro", "reflect_rl-data")
    assert (folder / "data/reflect_rl/tasks/splits.json").is_file()
    assert (folder / "dvc.lock").is_file()
    assert any((folder / ".dvc/cache").iterdir())
    assert not (repo / ".dvc/cache").exists()
    assert not (repo / "data/reflect_rl").exists()
    assert run(repo, "git", "status", "--short").stdout == ""
    before = (folder / "data/code/base.sha256").read_text()
    (repo / "stages/base.py").write_text((repo / "stages/base.py").read_text() + "EDITED = 1\n")
    run(folder, "dvc", "repro", "inputs")
    assert (folder / "data/code/base.sha256").read_text() != before  # the code is linked, not copied
    run(repo, "git", "checkout", "--quiet", "stages/base.py")


def test_links_are_updated_if_the_repository_has_moved(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dvc.yaml").write_text(name)
        lay_out(tmp_path / "rehearsal", tmp_path / name)
        assert (tmp_path / "rehearsal/dvc.yaml").read_text() == name
    assert "dvc.yaml" in LINKED


def test_user_files_named_in_the_params_are_linked_except_those_that_stages_write(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "rehearsal"
    for name in ("mine/tasks.json", "mine/cache.jsonl", "plain"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    params = {
        "base": {},
        "spin": {"tasks": {"file": "mine/tasks.json", "form": "plain"}, "tools": {"cache": "mine/cache.jsonl"}},
    }
    folder.mkdir()
    link_named_files(folder, root, params, ["spin"])
    assert (folder / "mine/tasks.json").is_file()
    assert not (folder / "mine/cache.jsonl").exists()
    assert not (folder / "plain").exists()  # a value that merely equals a file's name


def test_generated_chats_and_snippets_can_be_read_by_the_pipeline(tmp_path: Path) -> None:
    make_chats(tmp_path)
    make_snippets(tmp_path)
    train, test = (read_chats(tmp_path / CHATS, split) for split in ("train", "test"))
    assert not {one.id for one in train} & {one.id for one in test}
    assert min(len(train), len(test)) >= 6
    assert "1951" in str(ReplaySearch(read_snippets(tmp_path / SNIPPETS))("film director"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama"),
        ("alignment-handbook/zephyr-7b-sft-full", "llama"),
        ("openai-community/gpt2-xl", "gpt2"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "qwen2"),
        ("someone/unknown", "llama"),
    ],
)
def test_the_replacement_model_is_of_the_same_family_as_the_profile_s(name: str, kind: str) -> None:
    assert stand_in.family(name) == kind


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2"])
def test_a_replacement_model_has_the_requested_type_and_supports_every_chat_template(kind: str, tmp_path: Path) -> None:
    from selfimprove.core.chat import ChatFormat
    from selfimprove.core.named_templates import NAMED_TEMPLATES
    from selfimprove.envs.labels import LABELS, label_ids
    from selfimprove.models.loading import check_vocabulary, load_causal_lm

    stand_in.build(kind, tmp_path / kind, ROOT)
    model = load_causal_lm(tmp_path / kind)
    assert model.config.model_type == kind
    for template in NAMED_TEMPLATES:
        check_vocabulary(tmp_path / kind, model, ChatFormat.load(tmp_path / kind, template).vocab_size)
    chat = ChatFormat.load(tmp_path / kind)
    tokens = label_ids(LABELS["full"], lambda text: chat._content_tokens.encode(text).ids)
    assert len(set(tokens)) == len(LABELS["full"])


def test_a_second_rehearsal_of_a_profile_is_refused_while_the_first_runs(repo: Path) -> None:
    folder = repo / ".rehearsal/rise-llama2-7b"
    folder.mkdir(parents=True)
    with FileLock(folder / "lock"):
        done = run(repo, *COMMAND, "rise-llama2-7b", check=False)
    assert done.returncode == 2
    assert done.stderr == "rehearse: another rehearsal of 'rise-llama2-7b' is running here; wait for it, or stop it.\n"
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rise-llama-7b"], "did you mean 'rise-llama2-7b'?"),
        (["default"], "trains only small models on the CPU and needs no rehearsal; `make use PROFILE=default &&"),
        (
            ["rise-llama2-7b", "--method", "spin"],
            "trains spin as a small model on the CPU, which needs no rehearsal; use METHOD=rise",
        ),
        (
            ["rise-llama2-7b", "--method", "none"],
            "METHOD='none' is not a method; choose all, rise, agent_r, reflect_rl, spin.",
        ),
    ],
)
def test_profiles_and_methods_that_cannot_be_rehearsed_are_reported_in_one_sentence(
    repo: Path, words: list[str], sentence: str
) -> None:
    done = run(repo, *COMMAND, *words, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (repo / ".rehearsal" / words[0]).exists()


def test_an_invalid_profile_is_reported_as_such_and_not_as_needing_no_rehearsal(repo: Path) -> None:
    file = repo / "profiles/rize.yaml"
    file.write_text("rize: {tasks: {train: 5}}\n")
    done = run(repo, *COMMAND, "rize", check=False)
    file.unlink()
    assert (done.returncode, done.stderr) == (2, "profiles/rize.yaml: unknown section 'rize'; did you mean 'rise'?\n")
