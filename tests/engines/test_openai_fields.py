"""The fields of each call to an endpoint: seeds, and those that params add or omit."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from selfimprove.core.seeds import SeedKey
from selfimprove.engines.openai import spaced_seed
from tests.engines.http_endpoint import answer, endpoint
from tests.engines.test_openai import KEY, ask, config, run


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_seeds_differ_by_sample_fit_31_bits_and_are_spaced_for_the_servers_child_seeds() -> None:
    keys = [SeedKey(0, f"task {i}", turn, sample) for i in range(50) for turn in range(2) for sample in range(2)]
    seeds = [spaced_seed(key.bits(), 16) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed <= 2**31 - 16 and seed % 16 == 0 for seed in seeds)
    with endpoint() as server:
        run(server, ask("a", task="t1"), ask("a", task="t2"), concurrency=1)
        run(server, ask("a", task="t1"), send_seed=False)
    assert server.seen[0].body["seed"] != server.seen[1].body["seed"]
    assert "seed" not in server.seen[2].body


def test_extra_fields_are_sent_replace_the_engines_own_and_omit_those_that_are_null() -> None:
    extra = {"max_tokens": None, "max_completion_tokens": 4000, "top_p": None, "stop": None, "options": {"deep": [1]}}
    with endpoint(lambda _: answer("yes\nno")) as server:
        [[completion]], _ = run(server, ask(stop=("\n",)), extra_body=extra)
    sent = server.seen[0].body
    assert completion.text == "yes"  # the stop string still applies
    assert (sent["max_completion_tokens"], sent["options"]) == (4000, {"deep": [1]})
    assert not {"max_tokens", "top_p", "stop"} & sent.keys()


@pytest.mark.parametrize("name", ["messages", "model", "n", "seed", "stream"])
def test_extra_fields_cannot_change_what_is_sampled(name: str) -> None:
    with pytest.raises(ValidationError, match=f"the field '{name}' belongs to the engine"):
        config("http://127.0.0.1:1/v1", extra_body={name: None})
