"""rise-report: writes the summary of RISE's rows and the data of the accuracy-by-turn plot."""

from selfimprove.core.publish import write_json
from selfimprove.core.tables import write_csv
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.summary import rise_rows, summarise_rise, turn_rows
from selfimprove.methods.summary import headline_metrics
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-report", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    for row in rise_rows(stage.params):
        stage.input(f"results/rise/{row}")
    summary = summarise_rise(stage.params, stage.input("results/rise"))
    stage.narrow(summary)  # contains everything that depends on the params

    write_json(stage.output("results/summary/rise.json"), summary)
    write_json(stage.output("results/headline/rise.json"), headline_metrics("rise", summary))
    write_csv(stage.output("results/summary/rise-turns.csv"), turn_rows(summary))


if __name__ == "__main__":
    main()
