"""``make inspect``: evaluation episodes as inspect_ai logs, which ``inspect view`` opens.

    python -m selfimprove.apps.page.inspect_log RUN OUT

Writes one log per row, ``OUT/<method>-<row>.eval``. Runs in ``.venvs/inspect``, which contains inspect_ai and no
package of the main environment.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selfimprove.apps.page.episodes import to_page
from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.records import parse_row


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The episodes in a file; invalid lines are reported and skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = parse_row(line, f"{path}, line {number}")
                if row is not None:
                    yield to_page(row, number)
            except UserError as error:
                print(f"left out: {error}", file=sys.stderr)
            except ValueError as error:
                print(f"left out: {path}, line {number}: no episode ({type(error).__name__})", file=sys.stderr)


def log_of(path: Path) -> Any:
    """The log of one row's evaluation, ``results/<method>/<row>/episodes.jsonl``."""
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec

    method, row = path.parts[-3:-1]
    seen: dict[str, int] = {}
    samples = []
    for record in records(path):
        seen[record["t"]] = seen.get(record["t"], 0) + 1
        samples.append(_sample(record, seen[record["t"]]))
    created = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat()
    spec = EvalSpec(
        created=created, task=f"{method}/{row}", model=f"selfimprove/{method}-{row}", config=EvalConfig(),
        dataset=EvalDataset(name=method, samples=len(seen), location=str(path)),
    )  # fmt: skip
    return EvalLog(eval=spec, status="success", samples=samples)


def _sample(record: dict[str, Any], epoch: int) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
    from inspect_ai.scorer import Score

    kinds = {"system": ChatMessageSystem, "assistant": ChatMessageAssistant}  # all others are told to the model
    messages = [
        kinds.get(said["r"], ChatMessageUser)(content="".join(part[0] for part in said["p"])) for said in record["m"]
    ]
    scores = {"solved": Score(value="C" if record["s"] == "solved" else "I")}
    if record["r"] is not None:
        scores["reward"] = Score(value=record["r"])
    return EvalSample(
        id=record["t"], epoch=epoch, input=record["q"], target=record.get("gold", ""), messages=messages, scores=scores,
        metadata={"run": record["u"], "turns": record["n"], "invalid": record["x"], "status": record["s"]},
    )  # fmt: skip


def main(run: Path, out: Path) -> None:
    """Write a log for every evaluated row.

    Raises:
        UserError: no row has been evaluated.
    """
    from inspect_ai.log import write_eval_log

    files = sorted((run / "results").glob("*/*/episodes.jsonl"))
    if not files:
        raise UserError(f"{run / 'results'} contains no evaluated episodes; run `make repro` first.")
    out.mkdir(parents=True, exist_ok=True)
    for path in files:
        write_eval_log(log_of(path), str(out / f"{path.parts[-3]}-{path.parts[-2]}.eval"))
    print(f"{out}: {len(files)} logs; `.venvs/inspect/bin/inspect view --log-dir {out}` shows them")


if __name__ == "__main__":
    one_sentence()(main)(Path(sys.argv[1]), Path(sys.argv[2]))
