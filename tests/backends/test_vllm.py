"""vLLM itself, on a CPU in float32: a tiny model in our engine, and in vLLM's own server.

Runs in the optional environment .venvs/vllm (``make test-backends-vllm``), whose transformers is the reference.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.engines.base import Completion, EngineError
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.engines.openai import OpenAiEngine
from selfimprove.engines.vllm.engine import VllmEngine
from tests.backends.vllm_asking import CONTEXT, FEEDBACK, QUESTION, Reference, ask, build, check_logprobs, run, together
from tests.backends.vllm_server import KEY, Server, starting
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def server(vllm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM's OpenAI-compatible server; it starts while the other tests run."""
    with starting(vllm_dir, tmp_path_factory.mktemp("server") / "log.txt", CONTEXT) as server:
        yield server


def test_log_probabilities_equal_those_of_transformers(engine: VllmEngine, reference: Reference) -> None:
    requests = [ask(f"task {i}", temperature=t, top_p=p) for i in range(6) for t, p in ((1.0, 1.0), (0.5, 0.8))]
    finishes = set()
    for request, [completion] in zip(requests, together(engine, *requests), strict=True):
        check_logprobs(reference, request, completion)
        ids, logprobs = completion.token_ids or [], completion.logprobs or []
        assert completion.text == reference.chat.decode(ids)
        assert not reference.chat.stop_ids & set(ids), "the end-of-turn token is left out"
        assert len(logprobs) == len(ids) + (completion.finish == "stop")
        finishes.add(completion.finish)
    assert finishes == {"stop", "length"}, "both ends of a completion are covered"


def test_an_engine_works_after_bm25_has_imported_numba(engine: VllmEngine) -> None:
    assert "llvmlite.binding.ffi" in sys.modules
    assert together(engine, ask("beside numba"))


def test_a_greedy_episode_of_two_turns_equals_transformers_token_for_token(
    engine: VllmEngine, reference: Reference
) -> None:
    messages = [Message(role="user", content=QUESTION)]
    for _ in range(2):
        [[completion]] = together(engine, ask(messages=messages, temperature=0.0))
        assert completion.token_ids == reference.greedy(messages, 40)
        assert completion.token_ids
        messages += [
            Message(
                role="assistant",
                content=completion.text,
                token_ids=completion.token_ids,
                finish=completion.finish,
            ),
            Message(role="user", content=FEEDBACK),
        ]


def test_samples_differ_and_depend_only_on_their_own_seed_key(engine: VllmEngine) -> None:
    [samples] = together(engine, ask("seeds", n=6))
    assert len({tuple(c.token_ids or []) for c in samples}) == 6
    assert together(engine, ask("seeds", n=6)) == [samples]
    alone = [together(engine, ask("seeds", sample=i))[0][0] for i in (5, 2)]
    assert [c.token_ids for c in alone] == [samples[5].token_ids, samples[2].token_ids]
    crowd = [ask(f"other {i}", max_tokens=10 + i) for i in range(40)]
    *_, among = together(engine, *crowd, ask("seeds", n=6))
    assert [c.token_ids for c in among] == [c.token_ids for c in samples], "float32 on a CPU: no neighbour matters"


def test_waiting_requests_are_batched(engine: VllmEngine) -> None:
    before = engine.stats.slot_steps, engine.stats.busy_slot_steps, engine.stats.generated_tokens
    together(engine, *(ask(f"many {i}") for i in range(200)))
    steps = (engine.stats.slot_steps - before[0]) // 32
    tokens = engine.stats.generated_tokens - before[2]
    assert steps < tokens / 15, "fewer than a fifteenth of the steps that one after another would take"
    assert 0.5 < (engine.stats.busy_slot_steps - before[1]) / (engine.stats.slot_steps - before[0]) <= 1
    assert 0 < engine.stats.cached_prompt_tokens <= engine.stats.prompt_tokens


def test_a_stop_string_ends_the_text_just_before_it(engine: VllmEngine, reference: Reference) -> None:
    [free] = together(engine, ask("stops", n=8))
    [cut] = together(engine, ask("stops", n=8, stop=["e", "t"]))
    stopped = 0
    for whole, part in zip(free, cut, strict=True):
        at = min((whole.text + "et").find(word) for word in ("e", "t"))
        assert part.text == whole.text[:at]
        if at < len(whole.text):
            stopped += 1
            assert part.finish == "stop"
            if part.token_ids is not None:
                assert part.token_ids == (whole.token_ids or [])[: len(part.token_ids)]
                assert reference.chat.decode(part.token_ids) == part.text
                assert len(part.logprobs or []) == len(part.token_ids)
    assert stopped > 0


def test_only_allowed_answers_are_given_and_they_are_scored_without_the_constraint(
    engine: VllmEngine, reference: Reference
) -> None:
    allowed = ["north", "south", "go north", "3 + 4 = 7"]
    request = ask("allowed", n=12, allowed=allowed)
    [completions] = together(engine, request)
    assert {c.text for c in completions} <= set(allowed)
    assert len({c.text for c in completions}) > 1
    for completion in completions:
        assert completion.finish == "stop"
        check_logprobs(reference, request, completion)


def test_an_invalid_request_fails_without_affecting_others(engine: VllmEngine) -> None:
    async def work() -> list[Any]:
        long = [Message(role="user", content=QUESTION * 20)]
        requests = [ask("one"), ask("long", messages=long), ask("odd", top_p=0.0), ask("two")]
        return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    failures = engine.stats.failures
    one, long, odd, two = run(work())
    assert isinstance(long, EngineError)
    assert "context of 256" in str(long)
    assert isinstance(odd, EngineError)
    assert "top_p" in str(odd)
    assert [len(one), len(two)] == [1, 1]
    assert engine.stats.failures == failures + 2


def test_a_prompt_and_answer_that_fill_the_context_are_answered_and_scored(
    engine: VllmEngine, reference: Reference
) -> None:
    def prompt(digits: int) -> list[Message]:
        return [Message(role="user", content="1" * digits)]

    # The context is all positions of the model: there is none for another token.
    overhead = len(reference.chat.encode(prompt(0), add_generation_prompt=True).ids)
    messages = prompt(CONTEXT - 2 - overhead)  # a digit is one token, and so is the end of a turn
    assert engine.fits(messages, 2)
    assert not engine.fits(messages, 3)
    request = ask(messages=messages, max_tokens=2, allowed=["7"])
    [[completion]] = together(engine, request)
    assert (completion.text, completion.finish) == ("7", "stop")
    assert len(completion.logprobs or []) == 2
    check_logprobs(reference, request, completion)


def test_cancelling_a_request_does_not_affect_others(engine: VllmEngine) -> None:
    async def work() -> tuple[list[Completion], int]:
        gone = asyncio.create_task(engine.generate(ask("gone", n=20, max_tokens=200)))
        stays = asyncio.create_task(engine.generate(ask("stays")))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return await stays, engine.stats.completions

    before = engine.stats.completions
    completions, after = run(work())
    assert completions == together(engine, ask("stays"))[0]
    assert after == before + 1


def test_two_engines_in_one_process_do_not_affect_each_other(engine: VllmEngine, tmp_path: Path) -> None:
    other_dir = make_tiny_model(tmp_path / "other", seed=1)
    other, reference = build(other_dir), Reference(other_dir)
    messages = list(ask().messages)

    async def both() -> list[list[list[Completion]]]:
        requests = [ask(str(i), temperature=0.0) for i in range(10)]
        return await asyncio.gather(  # type: ignore[return-value]
            asyncio.gather(*map(engine.generate, requests)), asyncio.gather(*map(other.generate, requests))
        )

    alone = together(engine, ask(temperature=0.0))[0]
    first, second = run(both())
    assert first == [alone] * 10
    assert {tuple(c.token_ids or []) for [c] in second} == {tuple(reference.greedy(messages, 40))}
    assert first != second
    run(other.close())
    assert together(engine, ask(temperature=0.0)) == [alone], "closing one leaves the other at work"
    with pytest.raises(UserError, match="closed"):
        together(other, ask())


def test_a_folder_that_vllm_cannot_load_is_reported_in_one_sentence(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "broken")
    (folder / "config.json").write_text('{"model_type": "no such thing"}', encoding="utf-8")
    with refused_with(
        r"^engine vllm cannot load \S+broken \(.+\); fix the param model or context, or free some memory"
    ):
        build(folder)


def remote(url: str, model: str = "tiny") -> OpenAiEngine:
    cfg = OpenAiEngineConfig(
        engine="openai", base_url=url, model=model, api_key_env="TINY_KEY", n_per_call=4, tries=2, backoff=0.1
    )
    return OpenAiEngine(cfg)


def test_the_openai_engine_works_with_vllms_server(
    server: Server, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    url = server.wait()
    greedy, sampled, stop = ask(temperature=0.0), ask("remote", n=6), ask(temperature=0.0, stop=["e", "t"])
    long = ask(messages=[Message(role="user", content=QUESTION * 20)])

    async def work() -> tuple[list[Any], OpenAiEngine]:
        client = remote(url)
        answers = await asyncio.gather(
            *map(client.generate, (greedy, sampled, sampled, stop, long)), return_exceptions=True
        )
        await client.close()
        return answers, client

    (one, first, again, cut, refused), client = run(work())
    [local], [local_cut] = together(engine, greedy, stop)
    assert [(c.text, c.finish) for c in one] == [(local.text, local.finish)]
    assert [(c.text, c.finish) for c in cut] == [(local_cut.text, local_cut.finish)]
    assert len({c.text for c in first}) == 6
    assert again == first, "the server honours the seed"
    assert isinstance(refused, EngineError)
    assert client.stats.completions == 14
    assert client.stats.failures == 1
    assert client.stats.prompt_tokens > 0
    assert client.stats.generated_tokens > 0


def test_a_wrong_key_or_model_name_for_vllms_server_is_reported(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    url = server.wait()

    async def once(model: str) -> None:
        client = remote(url, model)
        try:
            await client.generate(ask())
        finally:
            await client.close()

    monkeypatch.setenv("TINY_KEY", "sk-wrong")
    with pytest.raises(UserError, match="TINY_KEY"):
        run(once("tiny"))
    monkeypatch.setenv("TINY_KEY", KEY)
    with pytest.raises(UserError, match="large"):
        run(once("large"))


@pytest.mark.parametrize("form", ["alpaca", "chat"])
def test_vllm_plays_spins_questions_reproducibly(engine: VllmEngine, form: Any) -> None:
    from selfimprove.envs.qa.base import Question
    from selfimprove.envs.qa.tools.dispatch import Tools
    from selfimprove.methods.spin.params import PlayParams
    from selfimprove.methods.spin.play import SpinEpisode, play

    cfg = PlayParams.model_validate({"max_tokens": 16, "max_turns": 2, "retries": 1})
    question = Question(id="q", task="hotpotqa", question="Who is Mara Venn?", gold="painter")
    tools = Tools({"search": lambda query: "Mara Venn is a painter."}, concurrency=4, timeout=30, longest=200)

    async def runs() -> list[SpinEpisode]:
        return await asyncio.gather(*(play(question, 0, tools, engine, cfg, 7, form=form, run=i) for i in range(4)))

    episodes = run(runs())
    assert all(episode.rounds and episode.status in ("solved", "unsolved") for episode in episodes), episodes
    assert len({"".join(message.content for message in episode.messages) for episode in episodes}) == 4
    assert run(runs()) == episodes
