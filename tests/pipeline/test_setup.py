"""`make setup`: which lock is installed into .venv, and that later calls keep it; make's argument checks."""

from __future__ import annotations

import fcntl
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
# A stub for Python and pip: has a version, creates the environment's folder, logs its arguments, and has no torch.
PYTHON = """#!/bin/bash
if [[ "$1 $2" == "-c import sys; print("* ]]; then
  {version}
  exit
fi
if [[ "$1 $2" == "-m venv" ]]; then
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
  cp "$0" "$3/bin/pip"
  exit
fi
echo "$(basename "$0") $*" >> {log}
[[ "$(basename "$0") $1" != "python -c" ]]
"""

OUTER = {"ACCELERATOR", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
"""Variables that a `make test` around the tests passes on."""


class Machine:
    """A machine without an environment; ``make`` returns the arguments that pip received."""

    def __init__(self, folder: Path) -> None:
        self.log, self.venv, self.python = folder / "log", folder / "venv", folder / "python3.11"
        self.set_python("echo 3.11")

    def set_python(self, version: str) -> None:
        """Replace the stub; ``version``: the command by which it tells its version."""
        self.python.write_text(PYTHON.format(log=self.log, version=version))
        self.python.chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        command = ["make", "--no-print-directory", f"PYTHON={self.python}", f"VENV={self.venv}", *words]
        environment = {name: value for name, value in os.environ.items() if name not in OUTER}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)

    def make(self, *words: str) -> list[str]:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        told = [line.partition("--quiet --disable-pip-version-check ")[2] for line in self.log.read_text().splitlines()]
        return [line for line in told if line]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


CPU = [
    "install --no-compile torch==2.13.0",
    "install --no-compile --require-hashes --no-deps -r requirements/main.lock",
]
CUDA = ["uninstall --yes torch", "install --no-compile --require-hashes --no-deps -r requirements/gpu.lock"]


def test_by_default_the_cpu_lock_is_installed_once(machine: Machine) -> None:
    assert machine.make("setup") == CPU
    assert f"python -m compileall -qq -j 0 {machine.venv}/lib\n" in machine.log.read_text()
    assert machine.make("setup") == []


def test_accelerator_cuda_installs_only_the_gpu_lock_and_later_setups_keep_it(machine: Machine) -> None:
    assert machine.make("setup", "ACCELERATOR=cuda") == CUDA
    assert machine.make("setup") == []  # nor does any other target, since all of them depend on setup
    assert machine.make("setup", "ACCELERATOR=cuda") == []


def test_a_cpu_environment_can_be_switched_to_gpus_and_back(machine: Machine) -> None:
    machine.make("setup")
    assert machine.make("setup", "ACCELERATOR=cuda") == CUDA
    assert machine.make("setup", "ACCELERATOR=cpu") == CPU
    assert machine.make("setup") == []


REMEDY = "install Python 3.11, or name one, as in `make setup PYTHON=/path/to/python3.11`."


def refused(machine: Machine, *words: str) -> str:
    """The one line, besides make's own, with which ``make setup`` refuses; nothing has been created."""
    done = machine.run("setup", *words)
    said, ended = done.stderr.splitlines()
    assert ended.startswith("make: ***")
    assert (done.returncode, done.stdout, machine.venv.exists()) == (2, "", False)
    return said


@pytest.mark.parametrize("python", ["/nowhere/python3.11", "no-such-python", ""])
def test_a_missing_python_is_reported_with_a_remedy(machine: Machine, python: str) -> None:
    said = refused(machine, f"PYTHON={python}")
    assert said == f"PYTHON={python} cannot be run, but Python 3.11 or 3.12 is needed; {REMEDY}"


def test_a_placeholder_for_a_python_that_is_not_installed_is_reported_with_a_remedy(machine: Machine) -> None:
    machine.set_python("echo 'command not found' >&2; exit 127")  # such as pyenv's
    assert refused(machine) == f"PYTHON={machine.python} cannot be run, but Python 3.11 or 3.12 is needed; {REMEDY}"


@pytest.mark.parametrize("version", ["3.1", "3.10", "3.11", "3.12", "3.13"])
def test_only_the_versions_of_python_that_pyproject_allows_are_accepted(machine: Machine, version: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    machine.set_python(f"echo {version}")
    if version in SpecifierSet(project["requires-python"]):
        assert machine.make("setup") == CPU
    else:
        said = refused(machine)
        assert said == f"PYTHON={machine.python} is Python {version}, but Python 3.11 or 3.12 is needed; {REMEDY}"


def test_an_environment_without_pip_is_completed(machine: Machine) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    (machine.venv / "bin/python").symlink_to(machine.python)  # as a failed `python -m venv` leaves it
    assert machine.make("setup") == CPU


def test_a_folder_that_was_moved_needs_no_new_environment(tmp_path: Path) -> None:
    """The scripts of an environment name its Python by a path that is no longer true; its ``python`` moves along."""
    scripts = {
        one.name for one in Path(sys.executable).parent.iterdir() if one.is_file() and one.read_bytes()[:2] == b"#!"
    }
    assert {"dvc", "pip", "pytest", "mypy", "lint-imports"} <= scripts
    targets = ("setup", "report", "lint", "test", "test-slow", "test-fast", "lock")
    done = subprocess.run(
        ["make", "-n", *targets, f"VENV={tmp_path}"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    commands = [line.strip() for line in re.split(r"&&|\|\||\||;|\n", done.stdout)]
    commands = [re.sub(r"^(\w+=\S+ +|! +)*", "", one) for one in commands]
    assert any(one.startswith("python -m dvc plots show") for one in commands)
    assert not {Path(one.partition(" ")[0]).name for one in commands} & scripts


def test_an_environment_beside_the_main_one_finds_its_packages_after_a_move(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for name in (".venv", ".venvs/ray"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", before / name], check=True)
    words = ["make", "-n", "env-ray", f"VENV={before}/.venv", f"RAY_ENV={before}/.venvs/ray"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    (recipe,) = [one for one in shown.replace("\\\n", " ").splitlines() if one.endswith('/main.pth"')]
    subprocess.run(["bash", "-c", recipe], check=True)
    before.rename(after)
    ask = [str(after / ".venvs/ray/bin/python"), "-c", "import sys; print(*sys.path)"]
    found = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()
    assert any(one.startswith(f"{after}/.venv/lib/") for one in found)


@pytest.mark.parametrize(
    ("known", "want"),
    [({}, "4242"), ({"USER": ""}, "4242"), ({"USER": "ann"}, "ann"), ({"LOGNAME": "ann"}, "")],
)
def test_a_user_without_a_name_has_its_number_as_name(tmp_path: Path, known: dict[str, str], want: str) -> None:
    (tmp_path / "id").write_text('#!/bin/bash\necho 4242; [ "$1" = -u ]\n')  # as in `docker run --user 4242`
    (tmp_path / "id").chmod(0o755)
    outer = {name: value for name, value in os.environ.items() if name not in OUTER | {"USER", "LOGNAME"}}
    environment = {**outer, "PATH": f"{tmp_path}:{outer['PATH']}", **known}
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=shown: ; @echo \"<$${USER-}>\"", "shown"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert shown.stdout == f"<{want}>\n"


@pytest.mark.parametrize(
    "name", ["PYTHONHOME", "PYTHONSAFEPATH", "OMP_DYNAMIC", "OMP_THREAD_LIMIT", "OMP_MAX_ACTIVE_LEVELS"]
)
def test_variables_that_hide_python_s_modules_or_change_the_number_of_threads_have_no_effect(name: str) -> None:
    """With OMP_DYNAMIC=true, OpenMP runs fewer threads than run.threads on a busy machine, which changes the bits."""
    words = ["make", "--no-print-directory", f'--eval=shown: ; @echo "<$${{{name}-}}>"', "shown"]
    environment = {**os.environ, name: "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "<>\n"


@pytest.mark.parametrize(
    ("site", "known", "want"),
    [("{}/dvc", "", ""), ("/dev/null/dvc", "", f"{ROOT}/.dvc/tmp/site"), ("/dev/null/dvc", "/elsewhere", "/elsewhere")],
)
def test_dvc_keeps_hashes_of_files_in_this_folder_if_it_cannot_in_its_own(
    tmp_path: Path, site: str, known: str, want: str
) -> None:
    """DVC would end with "unable to open database file", as in a container with a read-only file system."""
    shown = '--eval=shown: ; @echo "<$${DVC_SITE_CACHE_DIR-}>"'
    words = ["make", "--no-print-directory", shown, "shown", f"DVC_SITE={site.format(tmp_path)}"]
    environment = {**os.environ, "DVC_SITE_CACHE_DIR": known}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"<{want}>\n"


@pytest.mark.parametrize(("name", "want"), [("PIP_USER", "0"), ("PIP_TARGET", ""), ("PIP_PREFIX", "")])
def test_packages_are_installed_in_the_environment_whatever_a_cluster_sets_for_pip(name: str, want: str) -> None:
    words = ["make", "--no-print-directory", f'--eval=shown: ; @echo "<$${{{name}-}}>"', "shown"]
    environment = {**os.environ, name: "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"<{want}>\n"


def test_packages_on_pythonpath_that_would_replace_the_environment_s_are_refused(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"/nowhere:{tmp_path}"}
    for code in (0, 2):
        done = subprocess.run(
            ["make", "-n", "check"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code
        (tmp_path / "numpy").mkdir(exist_ok=True)
    assert f"PYTHONPATH contains {tmp_path}/numpy, which would replace the package in .venv; run `unset" in done.stderr


def test_an_unknown_accelerator_is_refused_with_the_valid_choices(tmp_path: Path) -> None:
    done = subprocess.run(["make", "setup", "ACCELERATOR=tpu"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "ACCELERATOR=tpu is unknown; choose one of: cpu cuda" in done.stderr


@pytest.mark.parametrize("target", ["repro", "check", "dag", "plan", "exp"])
def test_make_refuses_an_unknown_method(target: str) -> None:
    done = subprocess.run(
        ["make", "-n", target, "METHOD=rize"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "METHOD=rize is unknown; choose one of: all rise agent_r reflect_rl spin." in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["test-backends", "BACKENDS=vlm"], "BACKENDS=vlm is unknown; choose among: rehearse smollm2 vllm"),
        (["repro", "METHOD=rise spin"], "METHOD=rise spin is unknown; choose one of: all rise"),
        (["repro", "method=rise"], "method has no effect; write it in capitals, as in METHOD=rise."),
        (["repro", "METHODS=rise"], "METHODS has no effect; write METHOD."),
        (
            ["use", "PROFILE=smoke", "METHOD=rise"],
            "METHOD has no effect here; run `make use PROFILE=smoke`, then name the",
        ),
        (["remote", "URL="], "make remote URL=s3://bucket/folder"),
        (["leaderboard", "MODEL="], "MODEL is missing; name a model folder or a hub model"),
    ],
)
def test_missing_or_invalid_make_arguments_are_reported_before_anything_is_installed(
    words: list[str], said: str
) -> None:
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "pip install" not in done.stdout


def test_make_refuses_to_run_outside_its_folder(tmp_path: Path) -> None:
    words = ["make", "-f", str(ROOT / "Makefile"), "repro"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    [said] = done.stderr.splitlines()
    assert f"{tmp_path} is not the folder of this Makefile; go there, or run `make -C FOLDER TARGET`." in said


@pytest.mark.parametrize("words", [["PROFILE=rise-long"], ["METHOD=rise"]])
def test_claims_refuses_variables_that_it_would_ignore_for_hours(words: list[str]) -> None:
    done = subprocess.run(
        ["make", "-n", "claims", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert 'make claims ARGS="--profile rise-long --methods rise"' in done.stderr


@pytest.mark.parametrize("target", ["repro", "check", "verify", "compare", "report", "page", "watch", "dag", "demo"])
def test_targets_that_read_params_yaml_refuse_a_profile(target: str) -> None:
    words = ["make", "-n", target, "PROFILE=smoke"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "PROFILE has no effect here; run `make use PROFILE=smoke`" in done.stderr


def test_a_profile_s_name_in_the_environment_is_refused_but_no_other_profile() -> None:
    for name, code in (("smoke", 2), ("somebody-else-s", 0)):
        done = subprocess.run(
            ["make", "-n", "repro"], cwd=ROOT, env={**os.environ, "PROFILE": name}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == code
    assert "PROFILE has no effect here" not in done.stderr


def test_scratch_folders_are_not_deleted_under_a_run(tmp_path: Path) -> None:
    (tmp_path / ".scratch/stages/one").mkdir(parents=True)
    (tmp_path / ".scratch/locks").mkdir()
    command = [sys.executable, "-m", "selfimprove.pipeline.clean"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (tmp_path / ".scratch/locks/repro").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("a run is active in this folder")
    assert (tmp_path / ".scratch/stages/one").exists()
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert not (tmp_path / ".scratch/stages").exists()


def test_a_line_break_in_a_make_variable_separates_words_and_runs_nothing() -> None:
    words = ["make", "-n", "exp", "SET=run.seed=18\nrun.threads='2'"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    command = next(line for line in done.stdout.splitlines() if "pipeline.exp" in line)
    assert shlex.split(command)[3] == "run.seed=18 run.threads='2'"


def test_make_leaderboard_checks_the_model_before_it_installs_its_environment() -> None:
    words = ["make", "-n", "leaderboard", "MODEL=nowhere", f"LEADERBOARD_ENV={ROOT}/.scratch/no-environment"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.index("--only-check") < done.stdout.index("/.scratch/no-environment/bin/python -m pip install")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("use", "PROFILE"),
        ("plan", "PROFILE"),
        ("rehearse", "PROFILE"),
        ("play", "ENV"),
        ("exp", "SET"),
        ("exp", "JOBS"),
        ("repro", "JOBS"),
        ("sweep", "GRID"),
    ],
)
def test_make_passes_on_values_that_contain_a_quote_unchanged(target: str, name: str) -> None:
    command = ["make", "-n", target, "SET=run.seed=18", f"{name}=x'y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = [line for line in done.stdout.splitlines() if "x'" in line]
    assert lines
    assert all("x'y" in shlex.split(line) for line in lines)


def test_make_dag_checks_the_params_before_dvc_reads_them() -> None:
    done = subprocess.run(["make", "-n", "dag"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.index("selfimprove.pipeline.check params") < done.stdout.index("selfimprove.apps.report.dag")


@pytest.mark.parametrize("option", ["minutes", "seed"])
def test_an_invalid_option_of_make_soak_gives_a_one_line_error_and_exit_code_2(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["make", "--no-print-directory", "-n", "soak", f"{option.upper()}=x'y"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    words = shlex.split(done.stdout.splitlines()[-1])
    words = words[words.index("tests.soak") :]
    assert words[words.index(f"--{option}") + 1] == "x'y"
    monkeypatch.setenv(option.upper(), "x'y")  # make exports the variables of its command line
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("tests.soak", run_name="__main__")
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{option.upper()}=x'y: input should be a valid ")


NEWER = re.compile(
    r"^\.(ONESHELL|RECIPEPREFIX)\b|^(undefine|private|load)\b|^define \S+ *[:?+]?=|"
    r"^\w[\w-]* *(!=|:{2,3}=)|\S+ &:|\$\((file|let|intcmp|guile) ",
    re.MULTILINE,
)
"""What GNU make 3.81, which macOS has, does not know."""


def test_the_makefiles_use_only_what_the_make_of_macos_knows() -> None:
    for text in ("define a =\n", "A != b\n", "a b &: c\n", "A ::= b\n", "\t$(file >a,b)\n"):
        assert NEWER.search(text)
    for file in ("Makefile", "requirements/backends.mk"):
        assert not NEWER.search((ROOT / file).read_text(encoding="utf-8"))
    words = ["make", "-n", "test-backends", "BACKENDS=trl", ".FEATURES="]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "test-backends-trl" in done.stdout
    assert "--output-sync" not in done.stdout


def test_make_help_is_the_same_with_the_sed_of_macos(tmp_path: Path) -> None:
    sed = tmp_path / "sed"
    sed.write_text('#!/bin/bash\nexec /bin/sed "${@//\\\\t/t}"\n')  # writes a letter t for \t
    sed.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    helped = [
        subprocess.run(["make", "help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
        for environment in (dict(os.environ), {**os.environ, "PATH": path})
    ]
    assert helped[0] == helped[1]
    assert "\n  make setup           create .venv and install the pinned packages (" in helped[0]
