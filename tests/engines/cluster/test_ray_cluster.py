"""Compares the code and packages of a node with this machine's. Tests with Ray itself: tests/backends/test_ray_*.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from selfimprove.engines.cluster.config import sent
from selfimprove.engines.cluster.ray_actor import node_report
from selfimprove.engines.cluster.ray_cluster import Node, _difference

LOCK = "numpy==1.0 --hash=sha256:0\nno-such-package==2\n"
NODE = Node("4f" * 28, "n1", 8.0, 0.0)


def repository(folder: Path, code: str = "ANSWER = 42\n") -> Path:
    (folder / "selfimprove/core").mkdir(parents=True)
    (folder / "selfimprove/core/seeds.py").write_text(code)
    return folder


def report(root: Path) -> dict[str, Any]:
    return node_report()(str(root), LOCK)


def test_nodes_with_the_same_code_and_versions_do_not_differ(tmp_path: Path) -> None:
    here, there = report(repository(tmp_path / "a")), report(repository(tmp_path / "b"))
    assert here["versions"].keys() == {"python", "numpy", "torch"}  # from the lock, and torch, which may be in no lock
    assert _difference(NODE, here, there, tmp_path) is None


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("none", r"^node n1 has no repository at .*; put it on a path that all nodes share$"),
        ("edited", r"^node n1 has different code in .*/selfimprove than this machine; use one commit on both$"),
        ("renamed", r"^node n1 has different code in "),
        (
            "newer",
            r"^node n1 has different package versions: numpy 9\.9 \(here [^9)]+\); install the same locks on all nodes",
        ),
        (
            "bare",
            r"^node n1 has different package versions: numpy not installed \(here .*\), torch not installed \(here ",
        ),
        (
            "many",
            r"^node n1 has different package versions: (p\d 2 \(here 1\), ){4}p4 2 \(here 1\) and 3 more",
        ),
    ],
)
def test_a_node_with_other_code_or_packages_is_reported_with_the_differences(
    tmp_path: Path, there: str, said: str
) -> None:
    here, other = report(repository(tmp_path / "here")), report(repository(tmp_path / "there"))
    if there == "none":
        other = report(tmp_path / "nowhere")
    elif there == "edited":
        other = report(repository(tmp_path / "edited", "ANSWER = 43\n"))
    elif there == "renamed":
        (tmp_path / "there/selfimprove/core/seeds.py").rename(tmp_path / "there/selfimprove/core/grains.py")
        other = report(tmp_path / "there")
    elif there == "newer":
        other["versions"]["numpy"] = "9.9"
    elif there == "bare":
        other["versions"] = {"python": other["versions"]["python"]}
    else:
        here["versions"], other["versions"] = ({f"p{i}": version for i in range(8)} for version in ("1", "2"))
    assert re.search(said, str(_difference(NODE, here, other, tmp_path)))


def test_other_nodes_get_the_variables_of_libraries_but_no_machine_specific_variables() -> None:
    libraries = {"ATEN_CPU_CAPABILITY": "avx2", "HF_HOME": "/hub", "LOCAL_KERNELS": "a=b", "NCCL_SOCKET_IFNAME": "eth0"}
    own = {"HOME": "/root", "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": "/x", "RAY_ADDRESS": "a:1"}
    assert sent(libraries | own) == libraries
