"""``make claims``: the default profile for several seeds and every kind of CPU kernels available on this machine.

Each run has its own folder (``.rehearsal/claims-<kernels>-<seed>``) with links to the code, and its own params, cache
and results. An interrupted run resumes when the command is started again, and finished runs cost only seconds. The runs
share no cache: DVC does not distinguish the same stage on different kernels, and would restore it instead of running
it. A finished run is published at once (``results/published/``); ``make docs`` then updates the pages. With
``--profile rise-long``, the runs of that profile are published in its own folder; with ``arena-textcraft``, the
comparison of the methods is published (``claims.arena``).
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from selfimprove.apps.claims.arena import ARENAS, collected_arena, publish_arena
from selfimprove.apps.claims.claims import verdicts
from selfimprove.apps.claims.published import (
    FOLDER,
    PORTABLE,
    collected,
    folder_of,
    kinds_here,
    publish,
    read_published,
)
from selfimprove.core.cli import INTERRUPTED, one_sentence
from selfimprove.core.errors import UserError
from selfimprove.pipeline.jobs import asked, jobs_here
from selfimprove.pipeline.kernels import is_portable_here
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.profiles import DEFAULT, compose, composed
from selfimprove.pipeline.rehearsal.folder import HOME, lay_out, link_named_files, write_if_changed
from selfimprove.pipeline.rehearsal.run import repro

SEEDS = (17, 18, 19)
LIMITS: Mapping[str, Mapping[str, str]] = {
    "default": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512": {},
}
"""Kind of kernels -> variables that restrict the libraries below torch to it; ATEN_CPU_CAPABILITY is torch's own."""


def run_all(
    root: Path,
    kinds: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str] = METHODS,
    profile: str = DEFAULT,
    jobs: int = 1,
) -> int:
    """Run and publish every requested combination, with ``jobs`` stages in parallel.

    Returns the exit code of the first run that failed, or 0.

    Raises:
        UserError: this machine does not have the kernels, or another ``make claims`` is running here.
    """
    there = [*kinds_here(), *([PORTABLE] if is_portable_here() else [])]
    unknown = [kind for kind in kinds if kind not in there]
    if unknown:
        raise UserError(f"this machine has no {unknown[0]} kernels; choose among {', '.join(there)}.")
    home = root / HOME
    with alone(home / "claims.lock", f"another `make claims` is running in {home}; wait for it, or stop it."):
        for seed in seeds:
            for kind in kinds:
                code = _run(root, kind, seed, methods, profile, jobs)
                if code:
                    return code
    for verdict in verdicts(read_published(folder_of(profile, root / FOLDER))):
        state = "made" if verdict.made else f"not made: holds in {verdict.held} of {verdict.runs} runs"
        print(f"{verdict.claim.method}: {verdict.claim.text}: {state}")
    print("run `make docs`, which updates the pages from results/published/, then commit both.")
    return 0


def _run(root: Path, kind: str, seed: int, methods: Sequence[str], profile: str, jobs: int) -> int:
    folder = root / HOME / f"claims-{kind}-{seed}{'' if profile == DEFAULT else f'-{profile}'}"
    folder.mkdir(parents=True, exist_ok=True)
    lay_out(folder, root)
    params = composed(profile, root / "profiles")
    link_named_files(folder, root, params, list(methods))
    text, found = re.subn(r"^(  seed: )\d+", rf"\g<1>{seed}", compose(profile, root / "profiles"), count=1, flags=re.M)
    assert found == 1, "the run section names the seed"
    if kind == PORTABLE:
        text = re.sub(r"^(  kernels: )native", rf"\g<1>{PORTABLE}", text, count=1, flags=re.M)
    write_if_changed(folder / "params.yaml", text)
    print(f"claims: seed {seed} on {kind} kernels, in {folder}", flush=True)
    goals = ["report"] if tuple(methods) == tuple(METHODS) else [f"{method}-report" for method in methods]
    limits = {"ATEN_CPU_CAPABILITY": kind, **LIMITS[kind]} if kind in LIMITS else {}
    code = repro(folder, goals, {**os.environ, **limits}, jobs)
    if code == 0:
        compared = collected_arena(folder, kind)
        if compared is not None:
            files = [publish_arena(compared, root / ARENAS)]
        else:
            files = [publish(run, folder_of(profile, root / FOLDER)) for run in collected(folder, kind)]
        print(f"claims: {', '.join(map(str, files))}", flush=True)
    return code


@one_sentence()
def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make claims", description="the default for several seeds and kernels")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--kernels",
        nargs="+",
        default=None,
        help="default, avx2, avx512 or portable; on ARM processors arm64 (macOS) or aarch64 (Linux); "
        "if omitted, all of this machine except portable",
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--profile", default=DEFAULT)
    parser.add_argument("--jobs", default="", help="number of stages at once; default: as many as the cores allow")
    args = parser.parse_args()
    try:
        jobs = asked(args.jobs) if args.jobs else jobs_here(composed(args.profile))
        sys.exit(run_all(Path.cwd(), args.kernels or kinds_here(), args.seeds, args.methods, args.profile, jobs))
    except KeyboardInterrupt:
        print("claims: stopped; run the same command again to resume.", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
