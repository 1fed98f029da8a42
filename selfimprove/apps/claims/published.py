"""Results of a method in a run as a committed file, ``results/published/<method>/<kernels>-<seed>.json``, or for
profiles other than the default in ``results/published/profiles/<profile>/``.

The file contains the method's results table and the hash of every output of the method's stages, so that another
machine can check whether it produced the same bytes. A digest of the params that the method reads is included, so that
changing one method's params leaves the published runs of the others valid. ``make claims`` writes such files; so does
``python -m selfimprove.apps.claims.published FOLDER``, for a run in another folder.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from selfimprove.apps.report.table import read_summaries
from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Estimate
from selfimprove.core.publish import write_text
from selfimprove.core.records import read_object
from selfimprove.core.yaml import read_yaml
from selfimprove.methods.summary import headline
from selfimprove.pipeline.kernels import name_of
from selfimprove.pipeline.params import METHODS, RunParams, load_section
from selfimprove.pipeline.profiles import DEFAULT
from selfimprove.pipeline.sections import check_schemas
from selfimprove.pipeline.verify import outputs_of

FOLDER = Path("results/published")
PROFILES = "profiles"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
DIGITS = 6
PORTABLE = "portable"
"""Kernels that params.yaml selects (``run.kernels``); all others are selected by environment variables."""

Published = Mapping[str, Any]
"""The content of such a file."""

KEYS: Mapping[str, type] = {
    "method": str, "kernels": str, "seed": int, "threads": int, "packages": dict, "params": str, "results": dict,
    "outputs": dict,
}  # fmt: skip
"""Its keys and the types of their values."""


def folder_of(profile: str, folder: Path = FOLDER) -> Path:
    """The folder in which the runs of a profile are published."""
    return folder if profile == DEFAULT else folder / PROFILES / profile


def kernels_here() -> str:
    """The CPU kernels that torch uses in this process, see ``kernels.name_of``."""
    import torch

    return name_of(str(torch.backends.cpu.get_cpu_capability()))


def kinds_here() -> list[str]:
    """Every kind of kernels that can be selected on this machine, from the least to the most specialised."""
    kinds = ["default", "avx2", "avx512"]
    own = kernels_here()
    return kinds[: kinds.index(own) + 1] if own in kinds else [own]


def kernels_of(root: Path) -> str:
    """The kernels of the run in a folder, assuming that it ran on this machine."""
    run = load_section(read_yaml(root / "params.yaml"), "run", RunParams, str(root / "params.yaml"))
    return PORTABLE if run.kernels == PORTABLE else kernels_here()


def collected(root: Path, kernels: str) -> list[dict[str, Any]]:
    """The results of a finished run, one entry for each method that has results.

    Raises:
        UserError: there are none, or a summary or the params are damaged.
    """
    found = read_summaries(root=root)
    if not found:
        raise UserError(f"{root} contains no results to publish; run `make repro` there first.")
    params, outputs = read_yaml(root / "params.yaml"), output_hashes(root / "dvc.lock")
    check_schemas(params, str(root / "params.yaml"))
    return [
        {
            "method": method,
            **identity(params, kernels),
            "params": params_digest(params, [method]),
            "results": _shown(summary),
            "outputs": {path: md5 for path, md5 in sorted(outputs.items()) if _of(path) == method},
        }
        for method, summary in found.items()
    ]


def _of(path: str) -> str | None:
    """The method whose stages wrote an output: ``results/summary/rise-turns.csv`` -> ``rise``."""
    named = [part.split("-")[0] for part in Path(path).with_suffix("").parts]
    return next((method for method in METHODS if method in named), None)


def identity(params: Mapping[str, Any], kernels: str) -> dict[str, Any]:
    """What a run's numbers depend on besides its params and its code."""
    packages = {name: version(name) for name in PACKAGES}
    return {
        "kernels": kernels,
        "seed": params["run"]["seed"],
        "threads": RunParams.model_validate(params["run"]).threads,
        "packages": packages,
    }


def params_digest(params: Mapping[str, Any], methods: Sequence[str] = METHODS) -> str:
    """A digest of the params that some methods read, except seed and kernels, which ``identity`` contains."""
    kept = {
        "run": {key: value for key, value in params["run"].items() if key not in ("seed", "kernels")},
        "methods": {method: [params[method], *_start(params, method)] for method in methods},
    }
    return blake2b(json.dumps(kept, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _start(params: Mapping[str, Any], method: str) -> list[Any]:
    """The params of a method's base; an existing model brings its own architecture and tokenizer."""
    base, tokenizer = params["base"][method], params["tokenizer"][method]
    if base.get("model") is None:
        return [base, tokenizer]
    return [{key: value for key, value in base.items() if key != "arch"}]


def output_hashes(lock: Path) -> dict[str, str]:
    """Path -> MD5 of every output in dvc.lock.

    Raises:
        UserError: the file is damaged.
    """
    if not lock.is_file():
        return {}
    try:
        return {str(out.path): out.md5 for out in outputs_of(read_yaml(lock))}
    except ValueError as error:
        raise UserError(f"{lock} is damaged: {error}; restore it with `git restore {lock}`.") from None


def publish(run: Published, folder: Path = FOLDER) -> Path:
    """Write a run's file, replacing one of the same method, kernels and seed."""
    file = folder / run["method"] / f"{run['kernels']}-{run['seed']}.json"
    write_text(file, json.dumps(run, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return file


def read_published(folder: Path = FOLDER) -> list[Published]:
    """All published runs, by method, kernels and seed.

    Raises:
        UserError: a method's runs have different params, so they cannot be pooled.
    """
    found: list[Published] = []
    for method in METHODS:
        runs = [_complete(file) for file in sorted((folder / method).glob("*.json"))]
        if len({run["params"] for run in runs}) > 1:
            named = ", ".join(f"{run['kernels']}-{run['seed']} ({run['params']})" for run in runs)
            raise UserError(
                f"{folder / method} contains runs with different params: {named}; delete the old ones, or "
                "run `make claims`."
            )
        found += sorted(runs, key=lambda run: (run["kernels"], run["seed"]))
    return found


def _complete(file: Path) -> Published:
    run = read_object(file)
    for key, kind in KEYS.items():
        if not isinstance(run.get(key), kind):
            raise UserError(f"{file}: field {key!r} is missing or damaged; restore the file (git checkout {file}).")
    return run


def read_all_published(folder: Path = FOLDER) -> list[Published]:
    """The published runs of the default profile, then those of every other profile."""
    profiles = sorted(path.name for path in (folder / PROFILES).glob("*/"))
    return [run for profile in (DEFAULT, *profiles) for run in read_published(folder_of(profile, folder))]


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over seeds. Its error is the larger of the error over tasks and the error estimated from the seeds."""
    k = len(estimates)
    mean = math.fsum(one["mean"] for one in estimates) / k
    tasks = math.sqrt(math.fsum(one["se"] ** 2 for one in estimates)) / k
    seeds = math.sqrt(math.fsum((one["mean"] - mean) ** 2 for one in estimates) / (k - 1) / k) if k > 1 else 0.0
    return {"mean": mean, "se": max(tasks, seeds), "n": sum(int(one["n"]) for one in estimates)}


def _shown(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a method's summary that the tables show."""
    columns, gains, rates = summary["columns"], summary["gains"], summary["rates"]
    metrics = [*columns, *gains, *rates]
    rows = {
        name: {
            "what": row["what"],
            "training_tokens": row["training_tokens"],
            "omissions": row.get("omissions", {}),
            "metrics": {key: row["metrics"][key] for key in metrics if key in row["metrics"]},
        }
        for name, row in summary["rows"].items()
    }
    kept = {key: summary[key] for key in ("columns", "gains", "rates", "order", "last")}
    kept["headline"] = headline(summary)
    return rounded({**kept, "rows": rows, "last_minus": summary["last_minus"]})


def rounded(value: Any) -> Any:
    """The value with all floats rounded to ``DIGITS`` decimals."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [rounded(one) for one in value]
    return value


@one_sentence()
def main() -> None:
    """Publish the run in the given folder (default: this one), which must have run on this machine."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
    for run in collected(root, kernels_of(root)):
        print(publish(run))


if __name__ == "__main__":
    main()
