"""The stage runner with a small stage: identity, outputs, reuse of finished work, exit codes. (Kills: test_kill.)"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.records import Episode
from selfimprove.core.tracking import TrackingParams
from selfimprove.pipeline import kernels
from selfimprove.pipeline.params import RunParams
from selfimprove.pipeline.stage import Stage, stage
from tests.pipeline.workbench import ROOT, copy_code

assert __spec__
SCRIPT = __spec__.name.replace(".", "/") + ".py"
"""The stages here are functions in this module, so it is their script."""


class Small(Section):
    """A substitute for a method's params."""

    read: int = 1
    unread: int = 1
    file: str | None = None
    controls: Mapping[str, int] = Field(default={})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in {
        SCRIPT: "from selfimprove import code\n", "selfimprove/code.py": "",
        "requirements/runtime.lock": "numpy==2\n", "in.txt": "x",
        "params.yaml": "run: {seed: 1, threads: 1}\nbase: {read: 1, unread: 1}\n",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr("sys.argv", ["stage", "item"])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CLUSTER"):
        monkeypatch.setenv(name, "")  # restored afterwards
    return tmp_path


class Work:
    """A stage that writes its input and params, and counts how often its work was really done."""

    def __init__(self) -> None:
        self.done = 0
        self.error: BaseException | None = None

    def __call__(self) -> None:
        @stage("small", "base", Small)
        def main(stage: Stage[Small]) -> None:
            text = stage.input("in.txt").read_text()
            stage.narrow((stage.params.read, stage.params.file))
            out = stage.output("results/out")
            out.mkdir()
            (out / "a.txt").write_text(f"{text} {stage.params.read} {stage.run.seed} {stage.item}")
            stage.output("results/b.txt").write_text("b")
            self.done += 1
            if self.error:
                raise self.error

        main()


@pytest.fixture
def work(folder: Path) -> Work:
    return Work()


def test_outputs_are_published_and_scratch_keeps_only_their_hard_links(work: Work, folder: Path) -> None:
    work()
    assert (folder / "results/out/a.txt").read_text() == "x 1 1 item"
    assert (folder / "results/b.txt").read_text() == "b"
    (home,) = (folder / ".scratch/stages/small-item").iterdir()
    assert [path.name for path in home.iterdir()] == ["done"]
    assert json.loads((folder / ".scratch/timing/small@item.json").read_text())["seconds"] >= 0


@pytest.mark.parametrize("name", ["ACCELERATE_MIXED_PRECISION", "WORLD_SIZE", "PMI_SIZE"])
def test_a_launcher_around_the_run_changes_neither_the_precision_nor_the_processes_of_a_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With ACCELERATE_MIXED_PRECISION=bf16, weights differed; with WORLD_SIZE=2, a training waited for another one."""
    seen = []

    @stage("small", "base", Small)
    def main(stage: Stage[Small]) -> None:
        stage.output("results/b.txt").write_text("b")
        seen.append(name in os.environ)

    monkeypatch.setenv(name, "2")
    main()
    assert seen == [False]


@pytest.mark.parametrize("hours", [-2, 2])
def test_setting_the_clock_while_a_stage_runs_does_not_change_its_recorded_duration(
    folder: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now = time.time

    @stage("small", "base", Small)
    def main(stage: Stage[Small]) -> None:
        stage.output("results/b.txt").write_text("b")
        monkeypatch.setattr(time, "time", lambda: now() + hours * 3600)

    monkeypatch.setenv("SELFIMPROVE_STARTED", str(now() - 100))
    main()
    assert 100 <= json.loads((folder / ".scratch/timing/small@item.json").read_text())["seconds"] < 1000


@pytest.mark.parametrize(
    ("change", "again"),
    [
        (lambda: None, False),
        (lambda: Path("params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {read: 1, unread: 2}\n"), False),
        (lambda: Path("params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {read: 2, unread: 1}\n"), True),
        (lambda: Path("params.yaml").write_text("run: {seed: 2, threads: 1}\nbase: {read: 1, unread: 1}\n"), True),
        (lambda: Path("params.yaml").write_text("run: {seed: 1, threads: 2}\nbase: {read: 1, unread: 1}\n"), True),
        (lambda: Path("in.txt").write_text("y"), True),
        (lambda: Path("selfimprove/code.py").write_text("pass"), True),
        (lambda: Path("selfimprove/code.py").write_text('"""A docstring."""\n# and a comment\n'), False),
        (lambda: Path("selfimprove/unread.py").write_text("pass"), False),
        (lambda: Path(SCRIPT).write_text("from selfimprove import code\nX = 1"), True),
        (lambda: Path("site/numpy-9.0.dist-info").mkdir(parents=True), True),
        (lambda: Path("site/bitsandbytes-0.50.2.dist-info").mkdir(parents=True), False),
        (lambda: Path("selfimprove/notes.txt").write_text("not code"), False),
    ],
)
def test_work_is_repeated_only_if_inputs_read_params_code_or_locked_packages_changed(
    work: Work, change: Callable[[], object], again: bool
) -> None:
    work()
    change()
    work()
    assert work.done == 1 + again


def test_work_done_with_other_kernels_is_repeated(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "start_again", lambda wanted: None)  # it would replace this process
    monkeypatch.setattr(kernels, "check", lambda wanted: None)  # any processor can count
    work()
    Path("params.yaml").write_text("run: {seed: 1, threads: 1, kernels: portable}\nbase: {read: 1, unread: 1}\n")
    work()
    assert work.done == 2


def test_files_and_folders_named_in_the_read_params_are_inputs_compared_by_content(work: Work, folder: Path) -> None:
    Path("params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {file: models/mine}\n")
    work()
    (folder / "models/mine").mkdir(parents=True)
    (folder / "models/mine/weights").write_text("1")
    work()
    work()
    assert work.done == 2
    (folder / "models/mine/weights").write_text("2")
    work()
    assert work.done == 3


def test_deleted_or_edited_outputs_are_restored(work: Work, folder: Path) -> None:
    work()
    (folder / "results/b.txt").unlink()
    work()
    assert (work.done, (folder / "results/b.txt").read_text()) == (1, "b")
    (folder / "results/out/a.txt").write_text("edited")  # and, through the hard link, the copy in scratch
    work()
    assert (work.done, (folder / "results/out/a.txt").read_text()) == (2, "x 1 1 item")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\0\0\0", None])
def test_if_the_record_of_finished_work_is_damaged_the_work_is_repeated_with_a_message(
    work: Work, folder: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    work()
    (record,) = (folder / ".scratch/stages/small-item").glob("*/done/manifest.json")
    record.unlink() if damage is None else record.write_bytes(damage)
    work()
    assert (work.done, (folder / "results/b.txt").read_text()) == (2, "b")
    assert "the record of its finished work is damaged" in capsys.readouterr().err


def test_a_user_error_gives_one_line_and_exit_code_2_and_leaves_outputs_unchanged(
    work: Work, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work()
    (folder / "in.txt").write_text("y")
    work.error = UserError("in.txt:\n two lines\nin one; fix it.")
    with pytest.raises(SystemExit, match="2"):
        work()
    assert capsys.readouterr().err == "small@item: in.txt: two lines in one; fix it.\n"
    assert (folder / "results/out/a.txt").read_text() == "x 1 1 item"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_control_characters_in_an_environment_s_error_are_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    """``share``: whether the blocked episodes end the stage."""
    episode = Episode(
        id="one", env="mine", query="", gold="", prompt=[], turns=[], status="blocked", seed="1/one",
        error="no action \x1b]0;title\x07\x1b[31m called \u202eevil",
    )  # fmt: skip
    (folder / "params.yaml").write_text(f"run: {{seed: 1, threads: 1, max_blocked: {share}}}\nbase: {{}}\n")

    def body(stage: Stage[Small]) -> None:
        stage.output("results/b.txt").write_text("b")
        stage.count_blocked([episode])

    with suppress(SystemExit):
        run(body)
    said = capsys.readouterr().err
    assert r"no action \x1b]0;title\x07\x1b[31m called \u202eevil" in said
    assert all(char.isprintable() or char == "\n" for char in said)


def test_blocked_work_is_repeated_also_if_its_outputs_could_not_be_published(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "params.yaml").write_text("run: {seed: 1, threads: 1, max_blocked: 1}\nbase: {}\n")
    answers: list[int] = []

    def body(stage: Stage[Small]) -> None:
        with stage.journal() as journal:
            answers.append(len(journal))
            journal.add("paid", "answer")
        stage.output("results/b.txt").write_text("b")
        stage.count_failed([("a", "no answer")], 4, "episodes", "They count as failed")

    (folder / "results").touch()
    with pytest.raises(SystemExit, match="2"):
        run(body)
    assert "results can't be created as a folder" in capsys.readouterr().err
    (folder / "results").unlink()
    run(body)
    assert (folder / "results/b.txt").read_text() == "b"
    run(body)
    assert answers == [0, 1, 1]


def test_an_unfinished_journal_survives_a_run_with_other_params(folder: Path) -> None:
    answers: list[int] = []

    def body(stage: Stage[Small]) -> None:
        stage.narrow(stage.params.read)
        with stage.journal() as journal:
            answers.append(len(journal))
            journal.add("paid", "answer")
        if stage.params.read == 1 and len(answers) == 1:
            raise UserError("the endpoint does not answer.")
        stage.output("results/b.txt").write_text("b")

    with pytest.raises(SystemExit, match="2"):
        run(body)
    for read in (2, 1):
        (folder / "params.yaml").write_text(f"run: {{seed: 1, threads: 1}}\nbase: {{read: {read}}}\n")
        run(body)
    assert answers == [0, 0, 1]
    assert [path.name for path in (folder / ".scratch/stages").glob("*/*/*")] == ["done"]  # nothing else is left


@pytest.mark.parametrize(("failed", "ends"), [(1, False), (2, True)])
def test_other_failed_work_has_the_same_limit_as_blocked_episodes(
    folder: Path, capsys: pytest.CaptureFixture[str], failed: int, ends: bool
) -> None:
    (folder / "params.yaml").write_text("run: {seed: 1, threads: 1, max_blocked: 0.3}\nbase: {}\n")

    def body(stage: Stage[Small]) -> None:
        stage.output("results/b.txt").write_text("b")
        stage.count_failed([("a", "judge: no answer")] * failed, 4, "revision trajectories", "They are left out")

    with suppress(SystemExit):
        run(body)
    said = capsys.readouterr().err
    assert f"{failed} of 4 revision trajectories are blocked; the first, a: judge: no answer. " in said
    assert ("run.max_blocked allows a share of 0.3" in said) == ends
    assert ("They are left out; `dvc repro --force --single-item small@item` repeats them." in said) != ends
    assert (folder / "results/b.txt").exists() != ends


def test_a_file_that_cannot_be_accessed_gives_one_line_and_exit_code_2(
    work: Work, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work.error = PermissionError(errno.EACCES, "Permission denied", "in.txt")
    with pytest.raises(SystemExit) as end:
        work()
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "small@item: in.txt can't be read or written (Permission denied); fix that, or use another path.\n"
    )
    assert not (folder / "results").exists()


def test_a_journal_without_space_for_its_temporary_table_gives_one_line_and_exit_code_2(
    work: Work, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect("") as table:
        table.execute("CREATE TABLE t (k BLOB)")
        table.execute("PRAGMA max_page_count = 2")  # as on a full disk
        with pytest.raises(sqlite3.OperationalError) as full:
            table.execute("INSERT INTO t VALUES (zeroblob(100000))")
    work.error = full.value
    with pytest.raises(SystemExit, match="2"):
        work()
    said = "small@item: no temporary file can be written (database or disk is full); free some space, or set TMPDIR"
    assert capsys.readouterr().err.startswith(said)
    assert not (folder / "results").exists()


def test_an_internal_error_keeps_its_traceback_and_publishes_nothing(work: Work, folder: Path) -> None:
    work.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        work()
    assert not (folder / "results").exists()
    work.error = None
    work()  # the lock was released
    assert work.done == 2


def test_the_cause_of_an_error_in_one_sentence_has_its_traceback_in_the_log(
    work: Work, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work.error = UserError("my.worlds:Jugs failed; fix the class.")
    work.error.__cause__ = ZeroDivisionError("by the user")
    with pytest.raises(SystemExit, match="2"):
        work()
    assert capsys.readouterr().err == "small@item: my.worlds:Jugs failed; fix the class.\n"
    log = (folder / ".scratch/logs/small@item.log").read_text()
    assert log.endswith("small@item: my.worlds:Jugs failed; fix the class.\nZeroDivisionError: by the user\n")


def test_ctrl_c_reports_how_to_resume(work: Work, capsys: pytest.CaptureFixture[str]) -> None:
    work.error = KeyboardInterrupt()
    with pytest.raises(SystemExit, match="130"):
        work()
    assert capsys.readouterr().err == "small@item: stopped; run the same command again to resume.\n"


def run(body: Callable[[Stage[Small]], object]) -> None:
    stage("small", "base", Small)(lambda stage: body(stage) and None)()  # type: ignore[arg-type]


def test_outputs_that_are_not_written_and_inputs_declared_late_are_internal_errors(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="output results/never was declared but not written"):
        run(lambda stage: stage.output("results/never"))

    def late(stage: Stage[Small]) -> None:
        stage.output("results/x")
        stage.input("in.txt")

    (folder / "selfimprove/code.py").write_text("ANOTHER = 'identity'")
    with pytest.raises(RuntimeError, match=r"input in\.txt was declared after the work began"):
        run(late)
    assert not (folder / "results").exists()


def test_partial_outputs_of_an_unfinished_run_are_not_published(folder: Path, work: Work) -> None:
    work.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        work()
    (home,) = (folder / ".scratch/stages/small-item").iterdir()
    (home / "out/results/out/stale.txt").write_text("from before")
    work.error = None
    work()
    assert [path.name for path in (folder / "results/out").iterdir()] == ["a.txt"]


def test_invalid_params_end_the_stage_before_it_acquires_the_lock(
    folder: Path, work: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {raed: 1}\n")
    with pytest.raises(SystemExit, match="2"):
        work()
    assert "base.raed: unknown key; did you mean 'read'?" in capsys.readouterr().err
    assert (work.done, (folder / ".scratch/locks").exists()) == (0, False)


@pytest.mark.parametrize("item", ["../../elsewhere", "models/rise/iter1", "a\x1b[31m"])
def test_an_item_that_is_no_name_ends_the_stage_before_it_writes_anything(
    folder: Path, work: Work, item: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["stage", item])
    with pytest.raises(SystemExit, match="2"):
        work()
    said = capsys.readouterr().err
    assert said == f"small: there is no entry {item!r}; write the name of one of params.yaml, such as iter1.\n"
    assert (work.done, (folder / ".scratch").exists()) == (0, False)


def test_a_script_started_as_a_file_is_the_same_stage_as_with_python_m(tmp_path: Path) -> None:
    copy_code(tmp_path)
    (tmp_path / "params.yaml").write_text("run: {seed: 1, threads: 1}\nbase: {}\n")
    (tmp_path / "stages/rise/probe.py").write_text(
        "from selfimprove.core.params import Section\nfrom selfimprove.pipeline.stage import stage\n\n\n"
        "class Anything(Section, extra='allow'):\n    pass\n\n\n@stage('probe', 'base', Anything)\n"
        "def main(stage):\n    place = stage.output('out')\n    print('at work')\n    place.write_text('x')\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    said = []
    for command in (["stages/rise/probe.py"], ["-m", "stages.rise.probe"]):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said == ["at work\n", ""]  # the second reuses the work of the first


def test_no_stage_script_imports_a_heavy_package_before_its_work_begins() -> None:
    """A stage in its own process loads these packages only if its work needs them."""
    found = sorted(path.relative_to(ROOT) for path in ROOT.glob("stages/**/[a-z]*.py"))
    scripts = [".".join(path.with_suffix("").parts) for path in found]
    program = f"import sys, {', '.join(scripts)}; print(sys.modules.keys() & {{'torch', 'transformers', 'numpy'}})"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(("name", "method"), [("spin-finetune@rise", "spin"), ("base@rise", "rise"), ("inputs", "all")])
def test_a_missing_input_names_the_stage_s_own_method_even_if_its_row_is_called_like_another(
    folder: Path, name: str, method: str
) -> None:
    tracking, run = TrackingParams(report_to="none"), RunParams(seed=1)
    made = Stage(name, name.partition("@")[2], run, Small(), folder / SCRIPT, tracking)
    with pytest.raises(UserError, match=rf"^none\.txt does not exist; run `make repro METHOD={method}`, which"):
        made.input("none.txt")
