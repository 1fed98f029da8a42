"""report: merges the summaries of all methods into one file."""

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_object
from selfimprove.pipeline.params import METHODS, RunParams
from selfimprove.pipeline.stage import Stage, stage


@stage("report", "run", RunParams)
def main(stage: Stage[RunParams]) -> None:
    paths = {method: stage.input(f"results/summary/{method}.json") for method in METHODS}

    write_json(stage.output("results/summary.json"), {method: read_object(path) for method, path in paths.items()})


if __name__ == "__main__":
    main()
