"""reflect_rl-reinforce@<run>: reinforcement learning on episodes of the training split."""

import shutil
import sys

from selfimprove.core.publish import write_json
from selfimprove.core.tables import write_csv
from selfimprove.engines.cluster.config import NO_CLUSTER, use
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.methods.reflect_rl.logs import log_curve
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.prompts import MARKERS
from selfimprove.methods.reflect_rl.start import check_environment, mark_environment
from selfimprove.methods.rows import NONE
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.finetuning import lineage_tokens
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-reinforce", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, run, name = stage.params, stage.pick(stage.params.iterations), stage.item
    policy, reflector = reflect_rl.engines["policy"], reflect_rl.engines["reflector"]
    assert isinstance(policy, TransformersEngineConfig)  # guaranteed by the params' schema
    tasks = stage.input("data/reflect_rl/tasks")
    model = stage.input(f"models/reflect_rl/{run.init}")
    advisor = None if run.reflector == NONE else stage.input(f"models/reflect_rl/{run.reflector}")
    ancestors = lineage_tokens(stage, "reflect_rl", run.init) if run.init in reflect_rl.iterations else 0
    stage.narrow((reflect_rl.env, policy, reflector, reflect_rl.prompt, run.rl))

    use(NO_CLUSTER)  # episodes are played inside the training processes
    env = reflect_rl.env.make(tasks, training=True)
    check_environment(model, env)
    from selfimprove.methods.reflect_rl.learn import learn
    from selfimprove.methods.reflect_rl.rl_job import RLJob

    out = stage.output(f"models/reflect_rl/{name}")
    job = RLJob(
        model_dir=model, reflector_dir=advisor, out_dir=out, checkpoints=stage.scratch / "rl", env=env,
        tasks=load_split(tasks / "train.jsonl", env.name), params=run.rl, policy_engine=policy,
        reflector_engine=reflector, seed=stage.run.seed, threads=stage.run.threads,
        markers=MARKERS[reflect_rl.prompt.markers], max_blocked=stage.run.max_blocked,
    )  # fmt: skip
    with stage.progress(run.rl.max_steps) as progress:
        report = learn(job, progress.reach)
    if report.blocked:
        said = f"{report.blocked} of {report.episodes} episodes were blocked and not learnt from."
        print(f"{stage.name}: {said}", file=sys.stderr)
    mark_environment(out, env)
    stage.timing |= {"work_seconds": report.seconds, "play_seconds": report.play_seconds}
    stage.timing |= {"rollout_generated_tokens": report.generated_tokens}
    metrics = report.model_dump(exclude={"seconds", "play_seconds", "generated_tokens", "resumed_at"})
    settings = run.model_dump(mode="json")
    if run.rl.max_train_tokens is None:
        del settings["rl"]["max_train_tokens"]  # an unset option must not change the file
    write_json(
        stage.output(f"results/reflect_rl/{name}/train.json"),
        {**metrics, "lineage_tokens": ancestors + report.real_tokens, "settings": settings},
    )
    write_csv(stage.output(f"results/reflect_rl/{name}/curves.csv"), list(log_curve(job.log)))
    shutil.copyfile(job.log, stage.output(f"results/reflect_rl/{name}/log.jsonl"))


if __name__ == "__main__":
    main()
