"""code: what stages depend on besides their data: for each script the files that it imports or starts, with their
hashes, and the installed packages. No file says when those change, so DVC runs this stage every time.
"""

from selfimprove.pipeline.closure import ENVIRONMENT, manifest, scripts
from selfimprove.pipeline.installed import installed
from selfimprove.pipeline.params import RunParams
from selfimprove.pipeline.stage import Stage, stage


@stage("code", "run", RunParams)
def main(stage: Stage[RunParams]) -> None:
    stage.narrow(None)  # all code and the environment are part of every identity

    folder = stage.output("data/code")
    for script in scripts():
        file = (folder / script.relative_to("stages")).with_suffix(".sha256")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(manifest(script), encoding="utf-8")
    (folder / ENVIRONMENT.name).write_text(installed(), encoding="utf-8")


if __name__ == "__main__":
    main()
