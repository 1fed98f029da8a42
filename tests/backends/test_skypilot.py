"""SkyPilot's own parser reads cluster/skypilot.yaml. No cloud is contacted.

Runs in the environment of ``make test-backends-skypilot``, which contains neither this project's packages nor its code.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "cluster/skypilot.yaml"

pytestmark = [pytest.mark.backend, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # SkyPilot stores its state there
    import sky

    return sky


def test_the_task_has_the_documented_gpus_folder_variables_and_secrets(sky: Any) -> None:
    task = sky.Task.from_yaml(str(FILE))
    (resources,) = task.resources
    assert resources.accelerators == {"H100": 8}
    assert (task.num_nodes, task.workdir) == (1, ".")
    assert task.envs == {"PROFILE": "default", "METHOD": "all"}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY"} <= set(task.secrets)
    assert not any(str(value) for value in yaml_of(task)["secrets"].values())  # names without values


def yaml_of(task: Any) -> Any:
    return task.to_yaml_config()


def test_an_unknown_key_is_refused(sky: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(FILE.read_text().replace("num_nodes:", "num_nodez:"))
    with pytest.raises(Exception, match="did you mean 'num_nodes'"):
        sky.Task.from_yaml(str(wrong))


def test_its_commands_are_valid_shell_and_use_existing_make_targets(sky: Any) -> None:
    task = sky.Task.from_yaml(str(FILE))
    targets = set(re.findall(r"(?m)^([a-z][\w-]*):", (ROOT / "Makefile").read_text()))
    targets |= set(re.findall(r"(?m)^([a-z][\w-]*):", (ROOT / "requirements/backends.mk").read_text()))
    for script in (task.setup, task.run):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
        assert set(re.findall(r"make ([a-z]+)", script)) <= targets
    assert set(re.findall(r"make ([a-z]+)", task.run)) == {"use", "fetch", "repro", "publish"}


def sky_launch(page: str) -> list[str]:
    """The words of the command on a page, whose lines may begin with ``#``."""
    found = re.search(r"sky launch (.*\\\n)*.*", re.sub(r"(?m)^# *", "", page))
    assert found is not None
    return shlex.split(found[0].replace("\\\n", ""))


def test_the_documented_command_uses_this_file_its_variables_and_its_secrets() -> None:
    text, documented = FILE.read_text(encoding="utf-8"), (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    words, task = sky_launch(documented), yaml.safe_load(text)
    assert words == sky_launch(text)
    assert str(FILE.relative_to(ROOT)) in words
    variables = dict(word.split("=") for option, word in pairwise(words) if option == "--env")
    assert variables.keys() == task["envs"].keys()
    assert (ROOT / f"profiles/{variables['PROFILE']}.yaml").is_file()
    assert (ROOT / f"stages/{variables['METHOD']}").is_dir()
    secrets = {word for option, word in pairwise(words) if option == "--secret"}
    assert (
        {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OPENAI_API_KEY"}
        <= secrets
        <= task["secrets"].keys()
    )
