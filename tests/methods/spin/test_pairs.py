"""Pairs of expert and opponent, outcome pairs and the window (docs/spin.md, S2, S5, S6).

The two sides of a pair may differ only in the words that the policy wrote.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Example, Message, Pair
from selfimprove.engines.base import EngineError, Request
from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.experts import Expert, Round
from selfimprove.interop.spin import preferences
from selfimprove.methods.spin.encode import encode_pair
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.pairs import mixed, outcome_pairs, spin_pairs, text_of, unwritten
from selfimprove.methods.spin.params import ConvertParams, Mix
from selfimprove.methods.spin.parse import STOP
from selfimprove.methods.spin.play import SpinEpisode
from selfimprove.methods.spin.trajectory import to_json
from selfimprove.training.encode import EncodeCounters, encode_example
from selfimprove.training.report import PairCounters
from tests.methods.spin.episodes import BOOK, EXPERT, QUESTION, REPLIES, played
from tests.methods.spin.test_react_template import sentencepiece_like

SPOKEN = [f"{REPLIES[0]}{STOP}", f"{REPLIES[1]}{STOP}", REPLIES[2]]
WRONG = [SPOKEN[0], " She was born in Kesby.\nAction: finish[Kesby]"]


def asked(number: int) -> Question:
    return QUESTION.model_copy(update={"id": f"q{number}"})


def expert(number: int) -> Expert:
    return EXPERT.model_copy(update={"id": f"expert-q{number}", "question": asked(number)})


def blocked(*_: Any) -> None:
    raise EngineError("gone")


def test_experts_and_episodes_are_paired_by_question_regardless_of_the_reward() -> None:
    experts = [expert(2), expert(0), expert(1)]
    episodes = [played(WRONG, question=asked(0)), played(SPOKEN, question=asked(1)), played(WRONG, question=asked(2))]
    pairs, audit = spin_pairs(experts, episodes, ConvertParams(), "iter0")
    assert [pair.id for pair in pairs] == ["iter0-q0", "iter0-q1", "iter0-q2"]
    assert all("Tolma" in text_of(pair.real) for pair in pairs)
    assert "Kesby" in text_of(pairs[0].generated)
    assert (audit.episodes, audit.kept, audit.identical, audit.rewarded) == (3, 3, 1, 1)


def test_the_terminal_observation_is_on_neither_side() -> None:
    pairs, _ = spin_pairs([expert(0)], [played(WRONG, question=asked(0))], ConvertParams(), "iter0")
    for side in (pairs[0].real, pairs[0].generated):
        assert side[-1].role == "assistant"
        assert "Episode finished" not in text_of(side)
        assert "Action: finish[" in side[-1].content


def test_identical_pairs_are_counted_and_dropped_only_if_requested() -> None:
    episodes = [played(SPOKEN, question=asked(0)), played(WRONG, question=asked(1))]
    experts = [expert(0), expert(1)]
    kept, counted = spin_pairs(experts, episodes, ConvertParams(), "iter0")
    fewer, dropped = spin_pairs(experts, episodes, ConvertParams(drop_identical=True), "iter0")
    assert (len(kept), counted.identical, len(fewer), dropped.identical) == (2, 1, 1, 1)


def silent(number: int, run: int = 0) -> SpinEpisode:
    """An episode whose prompt alone filled the context."""
    cramped = {"rounds": [], "messages": [], "finished": False, "cramped": True, "reward": 0.0}
    return played(question=asked(number), run=run).model_copy(update=cramped)


def test_episodes_without_a_pair_and_unfinished_or_failed_ones_are_counted() -> None:
    episodes = [
        played(blocked, question=asked(0)),  # type: ignore[arg-type]
        played(WRONG, question=asked(3), run=1),
        played(SPOKEN, question=asked(9)),
        silent(4),
        played([SPOKEN[0]] * 11, question=asked(1)),
        played([SPOKEN[0], " hm"], question=asked(2)),
        played(WRONG, question=asked(3)),
    ]
    pairs, audit = spin_pairs([expert(n) for n in range(5)], episodes, ConvertParams(), "iter0")
    assert [pair.id for pair in pairs] == ["iter0-q1", "iter0-q2", "iter0-q3"]
    assert (audit.blocked, audit.silent, audit.without_expert, audit.unfinished, audit.failed) == (1, 1, 1, 1, 1)
    assert (audit.episodes, audit.kept) == (6, 3)  # a second run of a question is used for outcome pairs only


def test_an_episode_without_words_of_the_policy_is_in_no_outcome_pair() -> None:
    assert outcome_pairs([played(SPOKEN, question=asked(0)), silent(0, run=1)], "iter0") == []


def test_outcome_pairs_prefer_the_rewarded_run_of_questions_with_different_rewards() -> None:
    episodes = [
        played(WRONG, question=asked(0)), played(SPOKEN, question=asked(1)), played(SPOKEN, question=asked(2)),
        played(SPOKEN, question=asked(0), run=1), played(SPOKEN, question=asked(1), run=1),
        played(blocked, question=asked(2), run=1),  # type: ignore[arg-type]
    ]  # fmt: skip
    (pair,) = outcome_pairs(episodes, "iter0")
    assert pair.id == "iter0-outcome-q0"
    assert "Tolma" in text_of(pair.real)
    assert "Kesby" in text_of(pair.generated)


def test_a_run_that_is_blocked_after_its_first_round_gives_no_outcome_pair() -> None:
    def breaks_off(request: Request, _: int) -> str:
        if request.seed.turn:
            raise EngineError("gone")
        return SPOKEN[0]

    cut_off = played(breaks_off, run=1)
    assert (cut_off.status, cut_off.reward, text_of(cut_off.messages)) == ("blocked", 0.0, f"Thought:{SPOKEN[0]}")
    assert outcome_pairs([played(SPOKEN), cut_off], "iter0") == []


def test_a_partial_reward_counts_as_unrewarded_in_outcome_pairs_and_exported_preferences() -> None:
    part, right = played(WRONG).model_copy(update={"reward": 0.5}), played(SPOKEN, run=1)
    (pair,) = outcome_pairs([part, right], "iter0")
    assert "Tolma" in text_of(pair.real)
    one, other = to_json([part]), to_json([right])
    assert len(preferences(one, other, "runs")) == 1
    assert outcome_pairs([part, right.model_copy(update={"reward": 0.0})], "iter0") == []


def test_a_question_id_may_end_like_the_id_of_a_run() -> None:
    level = QUESTION.model_copy(update={"id": "level#0"})
    episodes = [played(WRONG, question=level), played(SPOKEN, question=level, run=1)]
    assert [pair.id for pair in outcome_pairs(episodes, "iter0")] == ["iter0-outcome-level#0"]


def said(text: str, *, own_ids: bool) -> SpinEpisode:
    """An episode that ends with a failed round, as played with an engine that keeps the stop string."""
    ids = [11, 12, 13] if own_ids else None
    episode = played([SPOKEN[0], text], retries=0)
    last = episode.messages[-1].model_copy(update={"token_ids": ids, "finish": "stop"})
    return episode.model_copy(update={"messages": [*episode.messages[:-1], last]})


def test_the_end_token_of_a_failed_round_is_trained_only_if_the_policy_wrote_it(react: ChatFormat) -> None:
    stopped, ended = said(f" hm{STOP}", own_ids=False), said(" hm", own_ids=True)
    right = played(SPOKEN, run=1)
    for episode, finish in ((stopped, "length"), (ended, "stop")):
        before = episode.model_dump()
        (pair,), _ = spin_pairs([EXPERT], [episode], ConvertParams(), "iter0")
        (outcome,) = outcome_pairs([episode, right], "iter0")
        assert pair.generated[-1].content == outcome.generated[-1].content == " hm"
        assert pair.generated[-1].finish == outcome.generated[-1].finish == finish
        assert (masked_and_learnt(react, pair, pair.generated)[1][-1] == react.end_id) is (finish == "stop")
        assert outcome.real == right.messages
        assert episode.model_dump() == before  # the episode itself is not modified


@pytest.mark.parametrize("kind", ["llama", "metaspace"])
def test_in_turn_formats_equal_words_have_equal_tokens_whichever_ids_the_model_generated(
    kind: str, tmp_path: Path
) -> None:
    sentencepiece_like(tmp_path, kind)
    zephyr = ChatFormat.load(tmp_path, "zephyr")
    words = "She was born"
    # Without the space that the tokenizer prepends to a text.
    spelt = [token for letter in "She▁was▁born" if (token := zephyr._tokens.token_to_id(letter)) is not None]
    assert zephyr.decode(spelt) == words
    assert spelt != zephyr.content_ids(Message(role="assistant", content=words))
    (one,) = played([words], form="reply").messages
    episode = played([words], form="reply").model_copy(
        update={"messages": [one.model_copy(update={"token_ids": spelt, "finish": "stop"})]}
    )
    known = EXPERT.model_copy(update={"rounds": [Round(thought=words, action="")]})
    (pair,), audit = spin_pairs([known], [episode], ConvertParams(), "iter0")
    encoded = encode_pair(pair, zephyr, PairParams(), PairCounters())
    assert audit.identical == 1
    assert encoded is not None
    assert encoded.identical


def test_without_evaluation_there_are_no_outcome_pairs() -> None:
    episodes = [played(WRONG, evaluate=False), played(SPOKEN, run=1, evaluate=False)]
    assert outcome_pairs(episodes, "iter0") == []


def some(count: int, source: str) -> list[Pair]:
    return [Pair(id=f"{source}-{n}", prompt=[], real=[], generated=[], source=source) for n in range(count)]


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.01, 1), st.just(0.0) | st.floats(0.01, 1))
def test_the_window_takes_the_first_pairs_of_each_source_and_is_deterministic(
    own: int, previous: int, mine: float, theirs: Any
) -> None:
    mix = Mix(own=mine, previous=theirs)
    joined = mixed(some(own, "iter1"), some(previous, "iter0"), mix)
    want = {f"iter1-{n}" for n in range(int(mine * own))} | {f"iter0-{n}" for n in range(int(theirs * previous))}
    assert {pair.id for pair in joined} == want
    assert len(joined) == len(want)
    assert joined == mixed(some(own, "iter1"), some(previous, "iter0"), mix)


def test_the_windows_order_depends_on_the_seed_and_is_the_originals_for_seed_42() -> None:
    one, other = (mixed(some(30, "a"), some(30, "b"), Mix(seed=seed)) for seed in (42, 43))
    assert [pair.id for pair in one] != [pair.id for pair in other]
    assert {pair.source for pair in one[:20]} == {"a", "b"}
    # The original mixes with datasets.Dataset.shuffle(seed=42).
    order = [pair.id for pair in mixed(some(10, "a"), [], Mix())]
    assert order == [f"a-{n}" for n in (5, 6, 0, 7, 3, 2, 4, 9, 1, 8)]


def masked_and_learnt(chat: ChatFormat, pair: Pair, side: list[Message]) -> tuple[list[int], list[int]]:
    encoded = encode_example(Example(id="e", messages=[*pair.prompt, *side]), chat, 10**6, EncodeCounters())
    assert encoded is not None
    start = len(chat.encode(pair.prompt, add_generation_prompt=True).ids)
    rows = list(zip(encoded.ids[start:], encoded.token_weights[start:], strict=True))
    return [token for token, weight in rows if not weight], [token for token, weight in rows if weight]


def test_only_tokens_written_by_the_policy_differ_between_the_sides(react: ChatFormat) -> None:
    """A policy that writes the expert's thoughts but gets half of the answers wrong: the sides differ only in answers.

    Equal texts have equal ids and masks, rewarded or not. The masked tokens are the tools' answers to the same
    searches. No terminal line, reward or end of turn is on one side only.
    """
    questions, episodes = [asked(n) for n in range(12)], []
    for number, question in enumerate(questions):
        last = SPOKEN[2] if number % 2 else SPOKEN[2].replace("finish[Tolma]", "finish[Kesby]")
        episodes.append(played([*SPOKEN[:2], last], question=question))
    pairs, _ = spin_pairs([expert(n) for n in range(12)], episodes, ConvertParams(), "iter0")
    hidden: dict[str, Any] = {"real": Counter(), "generated": Counter()}
    for number, pair in enumerate(pairs):
        (masked, learnt), (masked_too, learnt_too) = (
            masked_and_learnt(react, pair, side) for side in (pair.real, pair.generated)
        )
        hidden["real"].update(masked)
        hidden["generated"].update(masked_too)
        assert masked == masked_too
        assert learnt[-1] == learnt_too[-1] == react.end_id
        assert (learnt == learnt_too) is bool(number % 2)
        assert react.decode(learnt).replace("Tolma", "Kesby") == react.decode(learnt_too).replace("Tolma", "Kesby")
    assert hidden["real"] == hidden["generated"]
    aside = unwritten(pairs)
    assert sorted(aside["real"]) == sorted(aside["generated"]) != []
    assert react.decode(list(masked)) == f" {BOOK['The Silver Gate']} {BOOK['Mara Venn']}"
    for side in ("real", "generated"):
        whole = "".join(text_of(getattr(pair, side)) for pair in pairs)
        assert "reward" not in whole
        assert "Episode finished" not in whole


def test_observations_of_a_file_expert_are_on_one_line_like_the_policys() -> None:
    """Observations in FireAct's files may have several lines; the policy's never do."""
    rounds = [Round(thought="t", action="search[x]", observation="a\nb"), Round(thought="u", action="finish[y]")]
    filed = EXPERT.model_copy(update={"rounds": rounds})
    (pair,), _ = spin_pairs([filed], [played(SPOKEN, search=lambda query: "a\nb")], ConvertParams(), "iter0")
    seen = {side: [m.content for m in getattr(pair, side) if m.role == "user"] for side in ("real", "generated")}
    assert set(seen["real"]) == set(seen["generated"]) == {" a b"}


def test_a_run_that_was_not_scored_is_not_the_unrewarded_side_of_an_outcome_pair() -> None:
    assert outcome_pairs([played(SPOKEN), played(WRONG, run=1, evaluate=False)], "iter0") == []


def test_outcome_pairs_take_the_first_rewarded_and_the_first_unrewarded_run() -> None:
    again = [[" I recall it.\nAction: finish[Tolma]"], [" I guess.\nAction: finish[Oder]"]]
    runs = [played(said, run=number) for number, said in enumerate([SPOKEN, WRONG, *again])]
    (pair,) = outcome_pairs(runs, "iter0")
    assert text_of(pair.real) == text_of(runs[0].messages)
    assert text_of(pair.generated) == text_of(runs[1].messages)


def test_a_leading_blank_of_a_reply_is_on_neither_side() -> None:
    (pair,), _ = spin_pairs([EXPERT], [played([" She was born "], form="reply")], ConvertParams(), "iter0")
    assert pair.generated[0].content == "She was born "
