"""reflect_rl-report: writes the summary of Reflect-RL's rows and the data of the curves over RL steps."""

from selfimprove.core.publish import write_json
from selfimprove.core.tables import write_csv
from selfimprove.methods.reflect_rl.logs import curve_rows
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.summary import curves, reflect_rl_rows, summarise_reflect_rl
from selfimprove.methods.summary import headline_metrics
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-report", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    for row in reflect_rl_rows(stage.params):
        stage.input(f"results/reflect_rl/{row}")
    results = stage.input("results/reflect_rl")
    summary = summarise_reflect_rl(stage.params, results)
    rows = curve_rows(curves(stage.params, results))
    stage.narrow((summary, rows))  # contain everything that depends on the params

    write_json(stage.output("results/summary/reflect_rl.json"), summary)
    write_json(stage.output("results/headline/reflect_rl.json"), headline_metrics("reflect_rl", summary))
    write_csv(stage.output("results/summary/reflect_rl-curves.csv"), rows)


if __name__ == "__main__":
    main()
