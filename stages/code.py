"""code: for every stage's script, the files that it imports or starts and their hashes; what its stages depend on."""

from selfimprove.pipeline.closure import manifest, scripts
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


if __name__ == "__main__":
    main()
