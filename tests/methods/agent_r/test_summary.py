"""The columns of Agent-R's table."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl
from selfimprove.methods.agent_r.metrics import evaluate_metrics, outcomes
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.summary import agent_r_rows, summarise_agent_r
from tests.methods.agent_r.test_metrics import episode
from tests.support.profiles import profile


def test_without_bad_beginnings_the_table_has_no_revision_score(tmp_path: Path) -> None:
    params = AgentRParams.model_validate(profile("smoke")["agent_r"])
    assert params.evaluate.revision
    played, revised = [episode("ab", 1.0, task=1), episode("cd", 1.0, task=2)], [episode("abc", given=2)]

    def evaluate(name: str, continued: bool) -> None:
        (tmp_path / name).mkdir(exist_ok=True)
        write_json(tmp_path / name / "train.json", {"real_tokens": 10, "steps": 2})
        write_json(tmp_path / name / "metrics.json", evaluate_metrics(played, revised if continued else ()))
        write_jsonl(tmp_path / name / "outcomes.jsonl", outcomes(played, revised if continued else ()))

    for name in agent_r_rows(params):
        evaluate(name, continued=False)  # the base failed no task
    assert summarise_agent_r(params, tmp_path)["columns"] == ["score", "success"]
    for name in agent_r_rows(params):
        evaluate(name, continued=True)
    assert summarise_agent_r(params, tmp_path)["columns"] == ["score", "success", "revision_score"]
    evaluate("base", continued=False)
    with pytest.raises(UserError, match=r"base/metrics\.json has no 'revision_score'"):
        summarise_agent_r(params, tmp_path)
