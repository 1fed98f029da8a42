"""The hardware that a plan assumes, as given on the command line: GPUS=4x80GB GPU=H100 DISK=2TB PRICE=0.5,1.5."""

import os
import re
import subprocess
from dataclasses import dataclass

from selfimprove.core.errors import UserError, meant

GB = 10**9
UNITS = {"MB": 10**6, "GB": GB, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Gpu:
    """A GPU's limits from its data sheet: dense bfloat16 operations, and bytes of memory traffic, per second."""

    name: str
    operations: float
    bandwidth: float


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("B200", 2250e12, 8.0e12),
        Gpu("H200", 989e12, 4.8e12),
        Gpu("H100", 989e12, 3.35e12),
        Gpu("A100", 312e12, 2.0e12),
        Gpu("L40S", 362e12, 0.864e12),
        Gpu("A40", 150e12, 0.696e12),
        Gpu("A10", 125e12, 0.6e12),
        Gpu("L4", 121e12, 0.3e12),
        Gpu("RTX4090", 165e12, 1.008e12),
        Gpu("RTX3090", 71e12, 0.936e12),
    )
}


@dataclass(frozen=True)
class Hardware:
    """``count`` GPUs of ``memory`` bytes on each of ``nodes`` machines. Optional: ``disk`` in bytes, ``price`` (per
    million prompt tokens, per million generated ones) and ``hourly`` (price per GPU hour)."""

    count: int
    memory: float
    gpu: Gpu
    disk: float | None = None
    price: tuple[float, float] | None = None
    nodes: int = 1
    hourly: float | None = None

    @property
    def gpus(self) -> int:
        """Number of GPUs of all machines."""
        return self.count * self.nodes


@dataclass(frozen=True)
class Asked:
    """The request for a plan. ``gpus``: number and bytes of the GPUs of each machine (None: see ``choose_machine``);
    ``nodes``: number of such machines: vLLM's replicas run on all (``CLUSTER=ray``), training on ``launcher.nodes``;
    ``wide``: plan as if each launcher named all GPUs of all machines. The other fields are as in ``Hardware``."""

    gpus: tuple[int, float] | None = None
    gpu: Gpu | None = None
    disk: float | None = None
    price: tuple[float, float] | None = None
    nodes: int = 1
    hourly: float | None = None
    wide: bool = False


def parse_gpus(text: str) -> tuple[int, float]:
    """``4x80GB`` as (count, bytes each). Raises: UserError."""
    match = re.fullmatch(r"(\d{1,4})x(\d{1,5}(?:\.\d+)?)(MB|GB|TB|MiB|GiB|TiB)", text.strip(), re.IGNORECASE)
    if not match or not int(match[1]) or not float(match[2]):
        raise UserError(f"GPUS={text!r} is not a number of GPUs with their memory; write for example GPUS=4x80GB.")
    return int(match[1]), float(match[2]) * UNITS[match[3].upper()]


def parse_disk(text: str) -> float:
    """``2TB`` in bytes. Raises: UserError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)(MB|GB|TB|MiB|GiB|TiB)", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise UserError(f"DISK={text!r} is not a size; write for example DISK=2TB.")
    return float(match[1]) * UNITS[match[2].upper()]


def parse_price(text: str) -> tuple[float, float]:
    """``0.5,1.5``: prices per million prompt tokens and per million generated ones. Raises: UserError."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?),(\d{1,6}(?:\.\d+)?)", text.strip())
    if not match:
        raise UserError(
            f"PRICE={text!r} is not two prices, per million prompt tokens and per million generated tokens; write "
            "for example PRICE=0.5,1.5."
        )
    return float(match[1]), float(match[2])


def parse_hourly(text: str) -> float:
    """``2.5``: price per GPU hour. Raises: UserError."""
    if not re.fullmatch(r"\d{1,4}(?:\.\d+)?", text.strip()):
        raise UserError(f"GPU_PRICE={text!r} is not the price of a GPU per hour; write for example GPU_PRICE=2.5.")
    return float(text)


def parse_nodes(text: str) -> int:
    """``8``: number of machines. Raises: UserError."""
    if not re.fullmatch(r"[1-9]\d{0,3}", text.strip()):
        raise UserError(f"NODES={text!r} is not a number of machines; write for example NODES=8.")
    return int(text)


def parse_gpu(text: str) -> Gpu:
    """The GPU with this name. Raises: UserError: unknown name (suggests the closest)."""
    wanted = re.sub(r"[^A-Z0-9]", "", text.upper())
    if wanted in GPUS:
        return GPUS[wanted]
    hint = meant(wanted, GPUS, f"choose one of {', '.join(GPUS)}.")
    raise UserError(f"GPU={text!r} is unknown to the planner; {hint}")


def default_gpu(memory: float) -> Gpu:
    """A common GPU with ``memory`` bytes."""
    for limit, name in ((25 * GB, "RTX4090"), (52 * GB, "L40S"), (90 * GB, "H100"), (150 * GB, "H200")):
        if memory <= limit:
            return GPUS[name]
    return GPUS["B200"]


def visible_gpus() -> tuple[int, float, Gpu] | None:
    """This machine's GPUs by nvidia-smi and CUDA_VISIBLE_DEVICES: their number, smallest memory and kind; None without
    a GPU."""
    rows = nvidia_smi("name", "memory.total", "uuid")
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    rows = rows if named is None else _named(rows, named.split(","))
    try:
        memory = min(float(mib) * UNITS["MIB"] for _, mib, _ in rows)
    except ValueError:  # there are none, or the driver does not know the memory
        return None
    name = re.sub(r"RTX +(?=\d)", "RTX", rows[0][0].upper())
    # Whole names: an L40 is no L4, an RTX A1000 no A100, and a GH200 no H200.
    known = next((gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.name}(?!\d)", name)), None)
    return len(rows), memory, known or default_gpu(memory)


def nvidia_smi(*fields: str) -> list[list[str]]:
    """These fields of each of this machine's NVIDIA GPUs; [] without a GPU or its driver."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _named(rows: list[list[str]], names: list[str]) -> list[list[str]]:
    """The rows of the GPUs with these numbers or UUIDs; as in CUDA, the first other name ends the list.

    A part of a GPU (MIG) counts as the first GPU, since nvidia-smi's rows do not tell its own.
    """
    found = []
    for name in map(str.strip, names):
        if name.isdecimal():
            match = rows[int(name) : int(name) + 1]
        elif name.startswith("MIG-"):
            match = rows[:1]
        else:
            match = [row for row in rows if name.startswith("GPU-") and row[2].startswith(name)]
        if len(match) != 1:
            break
        found += match
    return found
