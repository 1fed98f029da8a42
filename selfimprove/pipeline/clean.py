"""``make clean-scratch``: deletes scratch folders of stages and sweeps, with checkpoints and journals; results stay."""

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.publish import remove
from selfimprove.pipeline import sweep
from selfimprove.pipeline.dvc_files import active
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.stage import SCRATCH


@one_sentence()
def main() -> None:
    """Raises: UserError: a run or a sweep in progress writes there."""
    if active():
        raise UserError(
            "a run is active in this folder and works in .scratch/stages; wait for it to end, or stop it, then run "
            "`make clean-scratch` again."
        )
    lock = sweep.HOME / "lock"
    with alone(
        lock, "a sweep is running in this folder; wait for it, or stop it, then run `make clean-scratch` again."
    ):
        for path in [SCRATCH / "stages", *(one for one in sweep.HOME.iterdir() if one != lock)]:
            remove(path)


if __name__ == "__main__":
    main()
