"""spin-report: writes the summary of SPIN's rows and the data of the plot by iteration."""

from selfimprove.core.publish import write_json
from selfimprove.core.tables import write_csv
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.summary import spin_rows, summarise_spin
from selfimprove.methods.summary import headline_metrics
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-report", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    for row in spin_rows(stage.params):
        stage.input(f"results/spin/{row}")
    summary = summarise_spin(stage.params, stage.input("results/spin"))
    stage.narrow(summary)  # contains everything that depends on the params

    write_json(stage.output("results/summary/spin.json"), summary)
    write_json(stage.output("results/headline/spin.json"), headline_metrics("spin", summary))
    write_csv(stage.output("results/summary/spin-iterations.csv"), summary["curve"]["points"])


if __name__ == "__main__":
    main()
