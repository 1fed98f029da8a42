"""inputs: records the dependencies of stages that dvc.yaml cannot name; DVC runs it every time.

``data/code``: for each stage script, the code that it consists of, and the installed packages (``pipeline.closure``).
``data/inputs``: for each method, content hashes of the files and folders that its params name by path (a model, a data
set, recorded episodes). A later stage re-runs only if its part of these files differs.
"""

from selfimprove.core.publish import write_json
from selfimprove.core.yaml import read_yaml
from selfimprove.models.base_adapter import named_base
from selfimprove.pipeline.closure import ENVIRONMENT, MANIFESTS, manifests, scripts
from selfimprove.pipeline.installed import installed
from selfimprove.pipeline.params import METHODS, PARAMS_FILE, RunParams, named_paths
from selfimprove.pipeline.stage import Stage, content_digest, stage


@stage("inputs", "run", RunParams)
def main(stage: Stage[RunParams]) -> None:
    values = read_yaml(PARAMS_FILE)
    found = {}
    for method in METHODS:
        base = (values.get("base") or {}).get(method) or {}
        named = named_paths([values.get(method), base, named_base(base.get("model"))])
        found[method] = {str(path): content_digest(path) for path in sorted(named)}
    code = manifests(scripts())
    stage.narrow((found, code))

    for method, files in found.items():
        write_json(stage.output(f"data/inputs/{method}.json"), files)
    folder = stage.output(str(MANIFESTS))
    for script, text in code.items():
        file = (folder / script.relative_to("stages")).with_suffix(".sha256")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / ENVIRONMENT.name).write_text(installed(), encoding="utf-8")


if __name__ == "__main__":
    main()
