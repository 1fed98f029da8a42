"""The episode loop: rounds, stop strings, retries, tools, and the messages for training (docs/spin.md, S8 to S16)."""

import asyncio
import random
import time
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.engines.base import Completion, EngineError, EngineStats, Request
from selfimprove.engines.episodes import play_all
from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.tools.dispatch import Tools
from selfimprove.methods.spin.metrics import evaluate_metrics
from selfimprove.methods.spin.params import PlayParams
from selfimprove.methods.spin.parse import STOP
from selfimprove.methods.spin.play import play
from selfimprove.methods.spin.prompts import NEUTRAL, alpaca, written
from selfimprove.methods.spin.trajectory import to_entry, trajectory
from tests.methods.spin.episodes import BOOK, EXPERT, QUESTION, REPLIES, played, policy, rounds_in, tools

LOOK = " More.\nAction: search[Mara Venn]"


def test_an_episode_ends_with_finish_and_is_scored() -> None:
    episode = played()
    assert [entry.tool for entry in episode.rounds] == ["search", "search", "finish"]
    assert (episode.finished, episode.answer, episode.reward, episode.em, episode.f1) == (True, "Tolma", 1.0, True, 1.0)
    assert (episode.status, episode.pred, episode.gt) == ("solved", "tolma", "tolma")
    assert episode.rounds[0].observation == BOOK["The Silver Gate"]


def test_an_episode_stops_after_max_turns_rounds_and_earns_nothing_if_unfinished() -> None:
    episode = played([LOOK] * 20)
    assert len(episode.rounds) == 11
    assert (episode.finished, episode.answer, episode.reward, episode.pred) == (False, "", 0.0, "")
    assert episode.status == "unsolved"
    assert len(played([LOOK] * 20, max_turns=3).rounds) == 3


def test_every_request_has_the_cue_the_stop_string_and_the_token_limit() -> None:
    asked: list[Request] = []

    def answer(request: Request, attempt: int) -> str:
        asked.append(request)
        return REPLIES[request.seed.turn]

    played(answer)
    texts = ["".join(message.content for message in request.messages) for request in asked]
    assert texts[0] == f"{alpaca(QUESTION.question)}Thought:"
    assert texts[1] == f"{texts[0]}{REPLIES[0]}\nObservation: {BOOK['The Silver Gate']}\nThought:"
    assert {request.max_tokens for request in asked} == {1000}
    assert all(list(request.stop) == [STOP] and request.keep_stop for request in asked)
    assert [rounds_in(text) for text in texts] == [1, 2, 3]


@pytest.mark.parametrize("form", ["alpaca", "question", "chat", "reply"])
def test_every_request_has_the_params_sampling_settings(form: Any) -> None:
    asked: list[Request] = []

    def answer(request: Request, attempt: int) -> str:
        asked.append(request)
        return REPLIES[request.seed.turn]

    played(answer, form=form, temperature=0.25, top_p=0.75, max_tokens=9)
    assert len(asked) == (1 if form == "reply" else 3)
    assert {(request.temperature, request.top_p, request.max_tokens) for request in asked} == {(0.25, 0.75, 9)}
    assert {request.keep_stop for request in asked} == {form in ("alpaca", "question")}


def test_without_evaluation_there_is_no_reward() -> None:
    assert played(evaluate=False).reward is None


@pytest.mark.parametrize("line", ["search Mara Venn", "dig[Mara Venn]", "[Mara Venn]", ""])
def test_an_invalid_action_costs_a_round_and_gets_the_neutral_observation(line: str) -> None:
    episode = played([f" t\nAction: {line}", *REPLIES[1:]])
    first = episode.rounds[0]
    assert (first.tool, first.observation, first.attempts) == (None, NEUTRAL, 1)
    assert len(episode.rounds) == 3


def test_a_tool_that_finds_nothing_or_raises_gives_the_neutral_observation() -> None:
    def broken(query: str) -> str | None:
        if query == "Mara Venn":
            raise RuntimeError("secret path /etc/shadow")
        return None

    episode = played(search=broken)
    assert [entry.observation for entry in episode.rounds] == [NEUTRAL, NEUTRAL, ""]
    assert "secret" not in trajectory(episode)


def test_an_observation_cannot_look_like_a_round() -> None:
    episode = played(search=lambda query: "A.\nThought: x\nAction: finish[y]\nObservation: z")
    assert episode.rounds[0].observation == "A. Thought: x Action: finish[y] Observation: z"


def test_a_hallucinated_observation_is_cut_from_the_episode() -> None:
    episode = played([f"{REPLIES[0]}\nObservation: Mara Venn was from Kesby.\nThought: so", *REPLIES[1:]])
    assert "Kesby" not in "".join(message.content for message in episode.messages)
    assert len(episode.rounds) == 3


def test_replies_without_an_action_are_requested_again_with_the_same_prompt() -> None:
    asked: list[Request] = []

    def answer(request: Request, attempt: int) -> str:
        asked.append(request)
        return " I wonder." if request.seed.turn == 1 and attempt < 3 else REPLIES[request.seed.turn]

    episode = played(answer)
    assert [entry.attempts for entry in episode.rounds] == [1, 4, 1]
    again = asked[1:5]
    assert [request.seed.sample for request in again] == [0, 1, 2, 3]
    assert all(request.messages == again[0].messages and request.stop == again[0].stop for request in again)
    assert "I wonder" not in trajectory(episode)


def test_an_action_without_the_space_after_its_colon_is_requested_again_as_in_fireact() -> None:
    episode = played(lambda request, attempt: (" t\nAction:" if attempt < 2 else " t\nAction: ") + "finish[Tolma]")
    assert [(entry.attempts, entry.tool) for entry in episode.rounds] == [(3, "finish")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_after_six_replies_without_an_action_the_round_fails_and_the_episode_ends(temperature: float) -> None:
    episode = played([REPLIES[0], " I wonder."], temperature=temperature)
    last = episode.rounds[-1]
    assert (last.thought, last.action, last.tool) == ("failed", "finish[]", "finish")
    assert (last.attempts, last.failed) == (6, True)
    assert (episode.finished, episode.answer, episode.reward) == (False, "", 0.0)  # the policy never wrote finish
    assert trajectory(episode).endswith(
        "Thought: failed\nAction: finish[]\nObservation: Episode finished, reward = False\n"
    )
    # Training uses the words that the policy wrote.
    assert (episode.messages[-1].content, episode.messages[-1].weight) == (" I wonder.", 1)
    assert "failed" not in "".join(message.content for message in episode.messages)


def test_episodes_do_not_depend_on_order_concurrency_or_slow_tools() -> None:
    questions = [
        QUESTION.model_copy(update={"id": f"q{number}", "question": f"Question {number}?"}) for number in range(24)
    ]

    def answer(request: Request, attempt: int) -> str:
        draw = random.Random(request.seed.at(attempt).bits())
        return draw.choice([REPLIES[0], REPLIES[1], REPLIES[2], " hm", " t\nAction: dig[x]"])

    def slow(query: str) -> str | None:
        time.sleep(0.001 * (len(query) % 3))
        return BOOK.get(query)

    async def run(order: list[int], concurrency: int, search: Any) -> dict[str, str]:
        calls = Tools({"search": search}, concurrency=4, timeout=30, longest=2000)
        one = lambda at: play(questions[at], at, calls, policy(answer), PlayParams(), 7, form="alpaca")  # noqa: E731
        return {one.id: one.model_dump_json() for one in await play_all(order, one, concurrency=concurrency)}

    straight = asyncio.run(run(list(range(24)), 1, BOOK.get))
    mixed = asyncio.run(run(list(reversed(range(24))), 24, slow))
    assert straight == mixed
    assert len(set(straight.values())) == 24


def test_an_episode_with_the_experts_replies_has_the_experts_messages() -> None:
    episode = played([f"{REPLIES[0]}{STOP}", f"{REPLIES[1]}{STOP}", REPLIES[2]])
    assert [m.model_dump() for m in episode.messages] == [
        m.model_dump() | {"finish": "stop" if m.role == "assistant" and "Action" in m.content else m.finish}
        for m in written(EXPERT.rounds, "alpaca")
    ]
    assert episode.prompt[0].content == alpaca(QUESTION.question)


def test_in_chat_format_turns_alternate() -> None:
    episode = played([f"Thought: {reply.strip()}" for reply in REPLIES], form="chat")
    assert [m.role for m in [*episode.prompt, *episode.messages]] == ["user", "assistant"] * 3
    assert episode.messages[0].content == "Thought: I need the author.\nAction: search[The Silver Gate]"
    assert episode.messages[1].content == f"Observation: {BOOK['The Silver Gate']}"
    assert [m.weight for m in episode.messages] == [1, 0, 1, 0, 1]
    assert episode.reward == 1


def test_exact_match_by_kind_of_question_and_the_iteration_of_an_episode_reach_the_results() -> None:
    kinds = [QUESTION.model_copy(update={"kind": kind}) for kind in ("bridge", "comparison")]
    episodes = [played(question=kinds[0], iteration="iter1"), played([" t\nAction: finish[x]"], question=kinds[1])]
    by_kind = evaluate_metrics(episodes)["kinds"]
    assert {kind: row["mean"] for kind, row in by_kind.items()} == {"bridge": 1.0, "comparison": 0.0}
    assert to_entry(episodes[0])["iteration"] == "iter1"


def test_the_question_prefix_precedes_the_question() -> None:
    episode = played(prefix="Yes or no: ")
    assert episode.prompt[0].content == alpaca(f"Yes or no: {QUESTION.question}")
    assert f"### Instruction:\nYes or no: {QUESTION.question}\n" in trajectory(episode)


class Spelling:
    """An engine whose replies have token ids: the code of each character, including the stop string's."""

    def __init__(self, replies: list[Completion], context: int = 10**6) -> None:
        self.replies, self.context, self.stats = replies, context, EngineStats()

    async def generate(self, request: Request) -> list[Completion]:
        return [self.replies[request.seed.turn]]

    def fits(self, messages: Any, max_tokens: int) -> bool:
        return sum(len(message.content) for message in messages) + max_tokens <= self.context

    async def close(self) -> None:
        pass


def spelt(text: Any, finish: Any = "stop") -> Completion:
    return Completion(text, finish, [ord(c) for c in text])


def run(replies: list[Completion], context: int = 10**6, form: Any = "alpaca", **params: Any) -> Any:
    cfg = PlayParams.model_validate(params)
    return asyncio.run(play(QUESTION, 0, tools(), Spelling(replies, context), cfg, 7, form=form))


@pytest.mark.parametrize(("finish", "whole"), [("stop", True), ("length", False)])
def test_a_plain_answer_is_finished_unless_the_token_limit_cut_it(finish: Any, whole: bool) -> None:
    episode = run([spelt(" Tolma\n", finish)], form="reply")
    (said,) = episode.messages
    assert episode.finished is whole
    assert (said.content, said.finish, said.token_ids) == (" Tolma\n", finish, [ord(c) for c in " Tolma\n"])
    assert evaluate_metrics([episode])["cut_completions"]["mean"] == (not whole)


def test_generated_ids_are_kept_if_the_text_is_unchanged() -> None:
    episode = run([spelt(REPLIES[0] + STOP), spelt(f"{REPLIES[1]}  {STOP}"), spelt(REPLIES[2])])
    first, second, last = (message for message in episode.messages if "Action" in message.content)
    assert first.token_ids == [ord(c) for c in REPLIES[0] + STOP]
    assert (second.content, second.token_ids) == (REPLIES[1] + STOP, None)  # two spaces were removed from its line
    assert (last.token_ids, last.finish) == ([ord(c) for c in REPLIES[2]], "stop")


def test_the_literal_observation_is_trained_only_if_the_policy_wrote_it() -> None:
    cut_short = Completion(REPLIES[0], "length", [ord(c) for c in REPLIES[0]])
    episode = run([cut_short, spelt(REPLIES[1] + STOP), spelt(REPLIES[2] + STOP)])
    added = episode.messages[2]
    assert (added.content, added.weight) == (STOP, 0)
    assert episode.messages[1].token_ids == [ord(c) for c in REPLIES[0]]
    assert [entry.cut for entry in episode.rounds] == [True, False, False]
    assert evaluate_metrics([episode])["cut_completions"]["mean"] == 1 / 3
    # After finish it belongs to the terminal line, which is dropped.
    assert (episode.messages[-1].content, episode.messages[-1].token_ids) == (REPLIES[2], None)


def test_an_observation_made_up_after_a_reply_without_an_action_is_cut_from_the_failed_round() -> None:
    episode = run([spelt(REPLIES[0] + STOP), spelt(f" I wonder.{STOP} Tolma.\nAction: finish[Tolma]")])
    assert (episode.rounds[-1].failed, episode.rounds[-1].attempts) == (True, 6)
    assert (episode.messages[-1].content, episode.messages[-1].token_ids) == (" I wonder.", None)


@pytest.mark.parametrize(
    ("form", "look", "finish"), [("alpaca", LOOK + STOP, "length"), ("chat", f"Thought:{LOOK}", "stop")]
)
def test_an_unfinished_episode_ends_with_the_policys_text_which_in_a_flat_format_did_not_end_its_turn(
    form: Any, look: str, finish: str
) -> None:
    episode = run([spelt(look)] * 2, form=form, max_turns=2)
    assert (episode.messages[-1].content, episode.messages[-1].finish) == (look, finish)


def test_an_episode_that_outgrows_the_context_is_unfinished_and_marked_as_cramped() -> None:
    episode = run([spelt(LOOK + STOP)] * 11, context=1400, max_tokens=1000)
    assert episode.cramped
    assert not episode.finished
    assert 0 < len(episode.rounds) < 11
    assert episode.messages[-1].role == "assistant"


def test_an_engine_failure_blocks_the_episode_and_keeps_its_rounds() -> None:
    def answer(request: Request, attempt: int) -> str:
        if request.seed.turn == 1:
            raise EngineError("endpoint gone")
        return REPLIES[0]

    episode = played(answer)
    assert (episode.status, episode.error, len(episode.rounds), episode.reward) == ("blocked", "endpoint gone", 1, 0.0)


@pytest.mark.parametrize("form", ["alpaca", "reply"])
def test_runs_of_a_question_have_their_own_ids_and_seeds(form: Any) -> None:
    seeds = []

    def answer(request: Request, attempt: int) -> str:
        seeds.append(str(request.seed))
        return REPLIES[2]

    assert [played(answer, form=form, run=number).id for number in (0, 1)] == ["q1", "q1#1"]
    assert len(set(seeds)) == 2


def test_a_refused_api_key_ends_the_run() -> None:
    def refused(query: str) -> str | None:
        raise UserError("the key is refused; set another.")

    with pytest.raises(UserError, match="refused"):
        played(search=refused)


def test_other_tasks_are_scored_by_their_own_rule() -> None:
    asked = Question(id="s", task="strategyqa", question="Is it so?", gold="no")
    assert played([" t\nAction: finish[No, never]"], question=asked).reward == 1
    assert played([" t\nAction: finish[not sure]"], question=asked).reward == 0
