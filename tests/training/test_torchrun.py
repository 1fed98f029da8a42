"""The processes of one machine meet where no other machine can reach them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from selfimprove.training.config import LauncherConfig
from selfimprove.training.processes import loopback, worker_command
from selfimprove.training.torchrun import LOOPBACK, LocalStore

PROCESS = """
import os, psutil, torch.distributed
torch.distributed.init_process_group("gloo")
for process in (psutil.Process(), psutil.Process().parent()):
    for one in process.net_connections("tcp"):
        if one.status == psutil.CONN_LISTEN:
            print(f"listens at {one.laddr.ip}.\\n", end="", flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_torchrun_s_processes_on_one_machine_listen_on_loopback_only(tmp_path: Path) -> None:
    """torchrun unpickles what it finds in its store, which listened on every interface."""
    (tmp_path / "process.py").write_text(PROCESS)
    command = worker_command(tmp_path / "job.json", LauncherConfig(kind="torchrun", processes=2))
    ran = subprocess.run(
        [*command[: command.index("-m", 3)], str(tmp_path / "process.py")],
        env={**os.environ, **loopback(), "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert set(ran.stdout.splitlines()) == {"listens at 127.0.0.1."}


def test_the_store_does_without_libuv_with_which_xtuner_s_torch_refuses_an_open_socket() -> None:
    """torch 2.5.1 ends with "The libuv TCPStore backend does not support initialization with an listen fd"."""
    store = LocalStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, use_libuv=True)
    assert not store.libuvBackend  # type: ignore[attr-defined]
    store.set("key", "value")
    assert LocalStore(LOOPBACK, store.port).get("key") == b"value"
