"""agent_r-report: writes the summary of Agent-R's rows and the data of the score-by-iteration plot."""

from selfimprove.core.publish import write_json
from selfimprove.core.tables import write_csv
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.summary import agent_r_rows, summarise_agent_r
from selfimprove.methods.summary import headline_metrics
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-report", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    for row in agent_r_rows(stage.params):
        stage.input(f"results/agent_r/{row}")
    summary = summarise_agent_r(stage.params, stage.input("results/agent_r"))
    stage.narrow(summary)  # contains everything that depends on the params

    write_json(stage.output("results/summary/agent_r.json"), summary)
    write_json(stage.output("results/headline/agent_r.json"), headline_metrics("agent_r", summary))
    write_csv(stage.output("results/summary/agent_r-iterations.csv"), summary["curve"]["points"])


if __name__ == "__main__":
    main()
