"""texts: the texts of all methods, from which one tokenizer is trained for all of them (base.<method>.texts: all).

What becomes a token as a whole comes first; then a text of each method in turn, so that a tokenizer that is trained on
the beginning alone has read of every method.
"""

from itertools import chain, zip_longest

from selfimprove.core.records import read_rows, write_rows
from selfimprove.models.base import ALL
from selfimprove.pipeline.params import METHODS, RunParams
from selfimprove.pipeline.stage import Stage, stage


@stage("texts", "run", RunParams)
def main(stage: Stage[RunParams]) -> None:
    files = [stage.input(f"data/{method}/texts.jsonl") for method in METHODS]

    found = [[row for _, row in read_rows(file)] for file in files]
    fixed = {row["text"]: row for rows in found for row in rows if row.get("fixed")}
    others = [[row for row in rows if row["text"] not in fixed] for rows in found]
    in_turn = (row for row in chain.from_iterable(zip_longest(*others)) if row is not None)
    write_rows(stage.output(f"data/{ALL}/texts.jsonl"), [*fixed.values(), *in_turn])


if __name__ == "__main__":
    main()
