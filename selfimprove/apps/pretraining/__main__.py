"""``make pretrain``: rebuilds models/pretrained from its recipe. After an interruption, the same command resumes."""

import argparse
from pathlib import Path

from selfimprove.apps.pretraining.make import make
from selfimprove.core.cli import one_sentence
from selfimprove.pipeline.lock import alone

RECIPE = Path(__file__).with_name("recipe.yaml")


@one_sentence()
def main() -> None:
    """See the module. Exits with 2 and a one-sentence error if the recipe is invalid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--out", type=Path, default=Path("models/pretrained"))
    parser.add_argument("--scratch", type=Path, default=Path(".scratch/pretraining"))
    arguments = parser.parse_args()
    with alone(arguments.scratch / "lock", f"another `make pretrain` is running in {arguments.scratch}; wait for it."):
        made = make(arguments.recipe, arguments.out, arguments.scratch)
    for kind, it in made.answers.items():
        print(f"{kind:28} {it.right:5} of {it.asked:5} right")
    print(f"wrote the model folder {arguments.out}; its README.md is the model card.")


if __name__ == "__main__":
    main()
