"""``make bench``: rollouts, tree search, reinforcement learning and self-play compared with the bare engine; training
compared with a plain trainer; the default run.

Prints a table for each part; the last line is one JSON document. Exits with 1 if a part is not ``valid``.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from typing import Any

from selfimprove.pipeline.params import METHODS

PARTS = ("environments", "matrix", "rollouts", "search", "reflect_rl", "questions", "training", "pairs", "load")
OPTIONAL = ("vllm", "cluster", "gpu")
"""Parts that run only if named in ``BENCH``, because their packages or devices are not on every machine."""


def main() -> None:
    """Run all parts, or those listed in ``BENCH=rollouts,training``; ``BENCH_THREADS`` sets the threads (default 2)."""
    every = (*PARTS, "pipeline")
    argparse.ArgumentParser(
        prog="make bench",
        description=f"BENCH: comma-separated parts, default {', '.join(every)}; also {', '.join(OPTIONAL)}. "
        "BENCH_THREADS: number of threads, default 2.",
    ).parse_args()
    threads = int(os.environ.get("BENCH_THREADS", "2"))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    asked = os.environ.get("BENCH", ",".join(every)).split(",")
    if unknown := sorted(set(asked) - {*every, *OPTIONAL}):
        known = ", ".join((*every, *OPTIONAL))
        print(f"BENCH={','.join(asked)}: there is no {unknown[0]!r}; there are {known}.", file=sys.stderr)
        sys.exit(2)
    document: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "threads": threads}
    for name in (*PARTS, *OPTIONAL):
        if name in asked:
            part = importlib.import_module(f"bench.{name}")
            document[name] = part.measure(threads=threads)
            part.show(document[name])
    if "pipeline" in asked:
        from bench import pipeline

        for method in METHODS:
            document[f"pipeline_{method}"] = pipeline.measure(method)
    print(json.dumps(document))
    wrong = [name for name, part in document.items() if isinstance(part, dict) and not part.get("valid", True)]
    if wrong:
        print(f"impossible metrics (above their limit) in: {', '.join(wrong)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
