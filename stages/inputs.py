"""inputs: for every method, the files and folders that its params name by path, by content; runs each time.

DVC knows the files that dvc.yaml names. Those that only params name (a model, a data set, worked episodes) reach it
through this list: whatever of them is edited, the stages that may read them are looked at again.
"""

from selfimprove.core.params import read_yaml
from selfimprove.core.publish import write_json
from selfimprove.pipeline.params import METHODS, RunParams, named_paths
from selfimprove.pipeline.stage import PARAMS_FILE, Stage, content_digest, stage


@stage("inputs", "run", RunParams)
def main(stage: Stage[RunParams]) -> None:
    values = read_yaml(PARAMS_FILE)
    found = {}
    for method in METHODS:
        named = named_paths([values.get(method), (values.get("base") or {}).get(method)])
        found[method] = {str(path): content_digest(path) for path in sorted(named)}
    stage.narrow(tuple(sorted((method, *sorted(files.items())) for method, files in found.items())))

    for method, files in found.items():
        write_json(stage.output(f"data/inputs/{method}.json"), files)


if __name__ == "__main__":
    main()
