"""One episode of Reflect-RL: prompts of both models, actions, and recorded data (docs/reflect-rl.md, L1 to L7)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Finish, Message, dump_line
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Choice, Completion, EngineError, EngineStats, Request
from selfimprove.engines.cache import RememberingEngine
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.episodes import play_all
from selfimprove.methods.reflect_rl.episode import RLEpisode, trajectory
from selfimprove.methods.reflect_rl.metrics import evaluate_metrics
from selfimprove.methods.reflect_rl.rl_config import ActingParams
from selfimprove.methods.reflect_rl.rollout import play, reflects
from tests.methods.reflect_rl.corridor import Corridor, DeadEnd, nan_cost

KEY = SeedKey(7, "e0")


class Scripted:
    """An engine that answers with a function of the prompt and records its requests."""

    def __init__(self, answer: object, room: int = 10**6, finish: Finish = "stop") -> None:
        self._answer, self._room, self._finish = answer, room, finish
        self.asked: list[Request] = []
        self.stats = EngineStats()

    async def generate(self, request: Request) -> list[Completion]:
        self.asked.append(request)
        await asyncio.sleep(0)
        text = self._answer(request.messages[0].content)  # type: ignore[operator]
        choice = Choice([1, 2, 3], 9, -0.7, 0.5) if request.choice else None
        return [Completion(text, self._finish, choice=choice)]

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return sum(len(message.content) for message in messages) + max_tokens <= self._room

    async def close(self) -> None:
        pass


def run(policy: object, reflector: object = None, cfg: object = None, env: Corridor | None = None) -> RLEpisode:
    env = env or Corridor()
    return asyncio.run(play(1, env, reflector, policy, cfg or ActingParams(), KEY))  # type: ignore[arg-type]


def test_the_reflector_sees_no_actions_and_the_policy_sees_the_reflection() -> None:
    policy = Scripted(lambda prompt: "1")
    reflector = Scripted(lambda prompt: " two cells are left # Action:\nleft")
    episode = run(policy, reflector)
    assert [request.messages[0].content for request in reflector.asked] == [
        "Walk. task 1, at 0 # Analyze:\n",
        "Walk. task 1, at 1 # Analyze:\n",
    ]
    assert policy.asked[0].messages[0].content == (
        "Walk. task 1, at 0 # Analyze:\ntwo cells are left\npick:\n0. left\n1. right # Action:\n"
    )
    assert episode.success
    assert [(step.label, step.command, step.cost, step.reflection) for step in episode.steps] == [
        ("1", "right", 0.5, "two cells are left"),
        ("1", "right", -2.0, "two cells are left"),
    ]
    assert episode.cost == -1.5
    assert all(request.max_tokens == 100 and not request.choice for request in reflector.asked)


def test_steps_with_shortened_prompts_or_cut_reflections_are_counted() -> None:
    whole = len("Walk. task 1, at 0 # Analyze:\n\npick:\n0. left\n1. right # Action:\n")
    asked = len("Walk. task 1, at 0 # Analyze:\n")
    for policy_room, reflector_room, finish, counted in (
        (whole + 1, asked + 100, "stop", (0, 0)),
        (whole, asked + 100, "stop", (1, 0)),
        (whole + 1, asked + 99, "stop", (1, 0)),
        (whole + 1, asked + 100, "length", (0, 1)),
    ):
        reflector = Scripted(lambda prompt: "", reflector_room, finish)  # type: ignore[arg-type]
        metrics = evaluate_metrics([run(Scripted(lambda prompt: "1", policy_room), reflector)])
        assert (metrics["shortened_prompts"]["mean"], metrics["cut_completions"]["mean"]) == counted


def test_each_model_samples_with_its_own_settings() -> None:
    cfg = ActingParams(temperature=0.5, top_p=0.6, top_k=7, reflect_temperature=0.8, reflect_top_p=0.9, max_tokens=11)
    policy, reflector = Scripted(lambda prompt: "1"), Scripted(lambda prompt: "Go on.")
    run(policy, reflector, cfg)
    assert {(r.temperature, r.top_p, r.top_k, r.max_tokens) for r in policy.asked} == {(0.5, 0.6, 7, 1)}
    assert {(r.temperature, r.top_p, r.top_k, r.max_tokens) for r in reflector.asked} == {(0.8, 0.9, 0, 11)}


def test_without_a_reflector_the_policy_reads_the_plain_state() -> None:
    policy = Scripted(lambda prompt: "1")
    episode = run(policy)
    assert policy.asked[0].messages[0].content == "task 1, at 0\npick:\n0. left\n1. right # Action:\n"
    assert episode.steps[0].reflection is None


def test_the_action_token_is_one_of_all_labels_the_listed_labels_or_the_vocabulary() -> None:
    for cfg, allowed in (
        (ActingParams(), ("0", "1", "2")),
        (ActingParams(mask_invalid=True), ("0", "1")),
        (ActingParams(shrink_head=False), None),
    ):
        policy = Scripted(lambda prompt: "1")
        run(policy, cfg=cfg)
        assert all(r.allowed == allowed and r.max_tokens == 1 and r.choice and r.cut_left for r in policy.asked)
        assert len({request.seed for request in policy.asked}) == len(policy.asked)


def test_an_unlisted_action_costs_a_step_and_is_recorded_as_invalid() -> None:
    episode = run(Scripted(lambda prompt: "2"))
    assert len(episode.steps) == 4
    assert (episode.status, episode.cost) == ("unsolved", 2.0)
    assert all(not step.valid and step.command is None for step in episode.steps)


def test_if_no_action_is_listed_every_label_is_invalid_and_uses_up_a_step() -> None:
    policy = Scripted(lambda prompt: "1")
    episode = run(policy, cfg=ActingParams(mask_invalid=True), env=DeadEnd())
    assert [request.allowed for request in policy.asked] == [("0", "1"), *[("0", "1", "2")] * 3]
    assert [step.valid for step in episode.steps] == [True, False, False, False]
    decisions = trajectory(episode, {"0": 5, "1": 9, "2": 8}, masked=True).decisions
    assert [decision.allowed for decision in decisions] == [[5, 9], *[[5, 9, 8]] * 3]


def test_all_episodes_of_a_batch_share_one_reflection_draw_per_step() -> None:
    cfg = ActingParams(reflect_prob=0.5)
    coins = {(batch, turn): reflects(cfg, SeedKey(batch, "a", turn)) for batch in range(40) for turn in range(5)}
    assert all(reflects(cfg, SeedKey(b, "other", t, 3)) == coin for (b, t), coin in coins.items())
    assert 70 < sum(coins.values()) < 130
    assert all(reflects(ActingParams(), SeedKey(0, "a", turn)) for turn in range(9))
    assert not any(reflects(ActingParams(reflect_prob=0.0), SeedKey(0, "a", turn)) for turn in range(9))


def test_every_step_of_an_episode_has_a_reflection_draw_of_its_own() -> None:
    policy, reflector = Scripted(lambda prompt: "0"), Scripted(lambda prompt: "words")
    episode = run(policy, reflector, ActingParams(reflect_prob=0.5), Corridor(max_turns=40))
    assert 10 < sum(step.reflection == "words" for step in episode.steps) < 30


def test_if_the_draw_skips_the_reflection_the_policy_reads_an_empty_one() -> None:
    policy, reflector = Scripted(lambda prompt: "1"), Scripted(lambda prompt: "words")
    episode = run(policy, reflector, ActingParams(reflect_prob=0.0))
    assert not reflector.asked
    assert episode.steps[0].reflection == ""
    assert policy.asked[0].messages[0].content.startswith("Walk. task 1, at 0 # Analyze:\n\npick:")


def test_a_cost_that_is_not_a_number_is_refused_with_its_action_and_task() -> None:
    with pytest.raises(UserError, match=r"corridor: action '1' in task 1 returned cost nan"):
        run(Scripted(lambda prompt: "1"), env=nan_cost())


def test_a_permanent_engine_failure_blocks_the_episode_and_keeps_its_steps() -> None:
    class Failing(Scripted):
        async def generate(self, request: Request) -> list[Completion]:
            if len(self.asked) == 1:
                raise EngineError("gone")
            return await super().generate(request)

    episode = run(Failing(lambda prompt: "0"))
    assert (episode.status, episode.error, len(episode.steps)) == ("blocked", "gone", 1)


def test_prompt_ids_are_kept_for_updates_but_not_written() -> None:
    episode = run(Scripted(lambda prompt: "1"), cfg=ActingParams(mask_invalid=True))
    decision = trajectory(episode, {"0": 5, "1": 9, "2": 8}, masked=True).decisions[0]
    assert (decision.prompt, decision.token, decision.allowed, decision.cost) == ([1, 2, 3], 9, [5, 9], 0.5)
    assert trajectory(episode, {"0": 5, "1": 9, "2": 8}, masked=False).decisions[0].allowed == [5, 9, 8]
    assert trajectory(episode, None, masked=False).decisions[0].allowed is None
    assert "prompt_ids" not in dump_line(episode)
    assert "logprob" in dump_line(episode)


def make_engine(folder: Path) -> TransformersEngine:
    cfg = TransformersEngineConfig(engine="transformers", slots=8, context=128, prefill_rows=4, prefill_block=16)
    return TransformersEngine(cfg, folder, threads=1)


def test_concurrent_episodes_equal_those_played_one_by_one(folder: Path) -> None:
    cfg = ActingParams(max_tokens=6)

    def played(at_once: int) -> list[RLEpisode]:
        policy, reflector = make_engine(folder), make_engine(folder)
        one = lambda task: play(task, Corridor(), reflector, policy, cfg, SeedKey(3, str(task)))  # noqa: E731
        return list(asyncio.run(play_all(range(8), one, concurrency=at_once)))

    together = played(8)
    assert together == played(1)
    assert len({step.label for episode in together for step in episode.steps}) > 1


def test_a_reflection_prompt_that_exceeds_the_context_loses_its_left_side(folder: Path) -> None:
    """Prompts that differ only in what is cut get the same reflection."""
    told = []
    for start in ("Run. ", "Stand still. "):
        env = Corridor()
        env.instruction = start + "Walk. " * 100
        cfg = ActingParams(reflect_temperature=0.0, max_tokens=6)
        episode = run(Scripted(lambda prompt: "1"), make_engine(folder), cfg, env)
        assert episode.success
        assert all(step.shortened for step in episode.steps)
        told.append([step.reflection for step in episode.steps])
    assert all(told[0])
    assert told[0] == told[1]


def test_a_remembering_engine_caches_greedy_requests_and_samples_all_others(folder: Path) -> None:
    inner = make_engine(folder)
    engine = RememberingEngine(inner, most=3)

    def ask(content: str, task: str, temperature: float = 0.0) -> Request:
        message = Message(role="user", content=content)
        return Request([message], SeedKey(1, task), temperature=temperature, max_tokens=5)

    async def together(requests: list[Request]) -> list[Completion]:
        return [one for (one,) in await asyncio.gather(*(engine.generate(request) for request in requests))]

    first = asyncio.run(together([ask("a", "1"), ask("a", "2"), ask("b", "3")]))
    assert inner.stats.requests == 2
    assert first[0] == first[1] != first[2]
    assert asyncio.run(together([ask("a", "9")])) == first[:1]  # also in another event loop
    assert inner.stats.requests == 2
    noisy = asyncio.run(together([ask("a", str(i), 1.0) for i in range(6)]))
    assert inner.stats.requests == 8
    assert len({one.text for one in noisy}) > 1
    asyncio.run(together([ask(text, "1") for text in "cde"]))  # evicts "a"
    asyncio.run(together([ask("a", "1")]))
    assert inner.stats.requests == 12
