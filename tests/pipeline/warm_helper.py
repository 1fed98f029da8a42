"""Runs a stage's command with the warm helper alongside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.repo_copy import ROOT


def start(
    folder: Path,
    work: str,
    *arguments: str,
    kernels: str = "native",
    engine: str = "transformers",
    helper: str = "from selfimprove.pipeline import warm",
) -> subprocess.Popen[str]:
    """Start the helper with a stage as its command; the stage requests that the helper run the program ``work``."""
    params = (ROOT / "profiles/default.yaml").read_text()
    params = params.replace("engine: transformers", f"engine: {engine}", 1)
    (folder / "params.yaml").write_text(params.replace("kernels: native", f"kernels: {kernels}"))
    (folder / "stages").mkdir()
    shutil.copy2(ROOT / "stages/__init__.py", folder / "stages")
    (folder / "stages/work.py").write_text(work)
    stage = [sys.executable, "-m", "stages.work", *arguments]
    command = [sys.executable, "-c", f"{helper}\nwarm.main()", *stage]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLOUR": "green", "ACCELERATOR": "cpu"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
