"""reflect_rl-data: the tasks of Reflect-RL as frozen panels, and AutoExplore's tasks themselves."""

from selfimprove.envs.enumerated import make_enumerated
from selfimprove.envs.enumerated_autoexplore import TASKS_FILE
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.tasks import build_panels, explore_tasks, panel_hash, to_rows, write_tasks
from selfimprove.pipeline.publish import write_json
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.records import write_rows


@stage("reflect_rl-data", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    params, cfg = stage.params.env, stage.params.tasks
    stage.own_files(params.repos, cfg.file)
    stage.narrow((params, cfg))

    folder = stage.output("data/reflect_rl/tasks")
    folder.mkdir()
    if params.name == "autoexplore":
        write_tasks(folder / TASKS_FILE, explore_tasks(params, cfg))
    env = make_enumerated(params, folder)
    panels = build_panels(cfg, env, seed=stage.run.seed)
    for name, ids in panels.items():
        write_rows(folder / f"{name}.jsonl", to_rows(env.name, ids))
    sizes = {
        name: {
            "n": len(ids),
            "hash": panel_hash(ids),
            "levels": {level: len(env.level_tasks(level, ids)) for level in env.levels},
        }
        for name, ids in panels.items()
    }
    write_json(folder / "panels.json", sizes)


if __name__ == "__main__":
    main()
