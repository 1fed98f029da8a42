"""vLLM's OpenAI-compatible server on a CPU, in a process that ends with its ``with`` block."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selfimprove.training.processes import free_port

KEY = "sk-key-of-the-test-server"


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def wait(self) -> str:
        """Wait until the server responds; return its address."""
        import httpx

        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200:
                    return f"http://127.0.0.1:{self.port}/v1"
            except httpx.HTTPError:
                pass
            time.sleep(0.5)
        raise AssertionError(self.log.read_text(encoding="utf-8", errors="replace")[-3000:])


@contextmanager
def starting(model_dir: Path, log: Path, context: int) -> Iterator[Server]:
    """A server of a model under the name ``tiny``; it may not respond yet."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--api-key", KEY]
    command += ["--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill", "--block-size", "32"]
    command += ["--max-model-len", str(context), "--max-num-batched-tokens", "4096", "--max-num-seqs", "32"]
    command += ["--generation-config", "vllm"]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **settings})
        try:
            yield Server(process, port, log)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
