"""``make clean-scratch``: deletes the stages' scratch folders, with checkpoints and journals; results stay."""

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.publish import remove
from selfimprove.pipeline.dvc_files import active
from selfimprove.pipeline.stage import SCRATCH


@one_sentence()
def main() -> None:
    """Raises: UserError: a run in progress writes there."""
    if active():
        raise UserError(
            "a run is active in this folder and works in .scratch/stages; wait for it to end, or stop it, then run "
            "`make clean-scratch` again."
        )
    remove(SCRATCH / "stages")


if __name__ == "__main__":
    main()
