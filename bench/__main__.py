"""``make bench``: rollouts, tree search, reinforcement learning and self-play against the raw engine; training against
a plain trainer; the default run.

Prints each part's table; the last line is one JSON document. Exits with 1 if a figure is impossible (above its limit).
"""

from __future__ import annotations

import json
import os
import platform
import sys

PARTS = ("environments", "rollouts", "search", "reflect_rl", "questions", "training", "pairs", "pipeline")


def main() -> None:
    """Run every part. ``BENCH=rollouts,training`` limits it; ``BENCH_THREADS`` sets the threads (default 2)."""
    threads = int(os.environ.get("BENCH_THREADS", "2"))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    parts = os.environ.get("BENCH", "environments,rollouts,search,reflect_rl,questions,training,pairs,pipeline").split(
        ","
    )
    document: dict[str, object] = {"machine": platform.processor() or platform.machine(), "threads": threads}
    if "environments" in parts:
        from bench import environments

        document["environments"] = environments.measure()
        environments.show(document["environments"])
    if "rollouts" in parts:
        from bench import rollouts

        document["rollouts"] = rollouts.measure(threads=threads)
        rollouts.show(document["rollouts"])
    if "search" in parts:
        from bench import search

        document["search"] = search.measure(threads=threads)
        search.show(document["search"])
    if "reflect_rl" in parts:
        from bench import reflect_rl

        document["reflect_rl"] = reflect_rl.measure(threads=threads)
        reflect_rl.show(document["reflect_rl"])
    if "questions" in parts:
        from bench import questions

        document["questions"] = questions.measure(threads=threads)
        questions.show(document["questions"])
    if "training" in parts:
        from bench import training

        document["training"] = training.measure(threads=threads)
        training.show(document["training"])
    if "pairs" in parts:
        from bench import pairs

        document["pairs"] = pairs.measure(threads=threads)
        pairs.show(document["pairs"])
    if "pipeline" in parts:
        from bench import pipeline

        for method in ("rise", "agent_r", "reflect_rl", "spin"):
            document[f"pipeline_{method}"] = pipeline.measure(method=method)
    print(json.dumps(document))
    wrong = [name for name, part in document.items() if isinstance(part, dict) and not part.get("valid", True)]
    if wrong:
        print(f"impossible figures (above their limit) in: {', '.join(wrong)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
