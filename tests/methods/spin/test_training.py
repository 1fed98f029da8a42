"""Encoding of pairs: which tokens are scored, what is truncated, what is counted (docs/spin.md, S13, S32 to S34)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message, Pair
from selfimprove.methods.spin.encode import EncodedPair, encode_pair, encode_pairs, pairs_of, sequences_of
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.pipeline.params import load_section
from selfimprove.training.encode import EncodedExample
from selfimprove.training.report import PairCounters

Maker = Callable[..., list[Pair]]


def says(content: str, **more: Any) -> Message:
    return Message(role="assistant", content=content, **{"weight": 1.0, **more})


def asks(content: str) -> Message:
    return Message(role="user", content=content)


def pair(real: list[Message], generated: list[Message], question: str = "How many?") -> Pair:
    return Pair(id="p", prompt=[asks(question)], real=real, generated=generated)


@pytest.fixture(scope="module")
def chat(tiny: Path) -> ChatFormat:
    return ChatFormat.load(tiny)


def encoded(one: Pair, chat: ChatFormat, **changes: Any) -> EncodedPair:
    result = encode_pair(one, chat, PairParams(**changes), PairCounters())
    assert result is not None
    return result


def scored(side: EncodedExample, chat: ChatFormat) -> str:
    """The scored tokens as text; an end of turn is shown as ``<end>``."""
    ids = [i for i, weight in zip(side.ids, side.token_weights, strict=True) if weight]
    return "".join("<end>" if i == chat.end_id else chat.decode([i]) for i in ids)


def test_only_the_policys_messages_are_scored_and_observations_are_context(chat: ChatFormat) -> None:
    one = encoded(pair([says("Search[Mia]"), asks("Mia has 7."), says("Finish[7]")], [says("Finish[8]")]), chat)
    assert scored(one.real, chat) == "Search[Mia]<end>Finish[7]<end>"
    assert scored(one.generated, chat) == "Finish[8]<end>"
    assert "Mia has 7." in chat.decode(one.real.ids)
    assert set(one.real.token_weights) == {0.0, 1.0}


def test_every_positive_message_weight_counts_as_one(chat: ChatFormat) -> None:
    heavy, light = (encoded(pair([says("a", weight=w)], [says("b", weight=w)]), chat) for w in (12.0, 0.5))
    assert heavy == light
    opening = encoded(pair([says("a", weight=0.0), asks("and?"), says("b")], [says("c")]), chat)
    assert scored(opening.real, chat) == "b<end>"


def test_both_sides_have_the_same_prompt_ids_which_are_never_scored(chat: ChatFormat) -> None:
    one = encoded(pair([says("Finish[7]")], [says("I think. Finish[8]")]), chat)
    prompt = chat.encode([asks("How many?")], add_generation_prompt=True).ids
    for side in (one.real, one.generated):
        assert side.ids[: len(prompt)] == prompt
        assert not any(side.token_weights[: len(prompt)])
        assert all(side.token_weights[len(prompt) :])


def test_a_response_ends_with_exactly_one_end_of_turn_token(chat: ChatFormat) -> None:
    plain = encoded(pair([says("Finish[7]")], [says("Finish[8]")]), chat)
    ids = chat.content_ids(says("Finish[7]"))
    for real in (
        says("Finish[7]" + chat.end_text),
        says("Finish[7]" + chat.end_text + chat.end_text),
        says("Finish[7]" + chat.end_text + "\n" + chat.end_text + "\n"),
        says("Finish[7]", token_ids=ids),
        says("Finish[7]", token_ids=[*ids, chat.end_id]),
        says("Finish[7]", token_ids=[*ids, chat.end_id, chat.end_id], finish="stop"),
    ):
        assert encoded(pair([real], [says("Finish[8]")]), chat) == plain
    assert plain.real.ids.count(chat.end_id) - plain.real.ids[:-1].count(chat.end_id) == 1
    # Within a text, or at the end of an observation, it is encoded as ordinary text.
    inner = encoded(pair([says(f"a{chat.end_text}b")], [says("c")]), chat)
    assert scored(inner.real, chat) == f"a{chat.end_text}b<end>"
    seen = encoded(pair([says("a"), asks(f"Seen.{chat.end_text}"), says("b")], [says("c")]), chat)
    assert chat.decode(seen.real.ids).count(chat.end_text) == 1


def test_the_text_of_the_tokenizers_own_eos_does_not_end_a_response_twice(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|pad|>"}))
    chat = ChatFormat.load(folder)  # its turns end with <|end|>
    plain = encoded(pair([says("Finish[7]")], [says("Finish[8]")]), chat)
    for end in ("<|pad|>", "<|end|><|pad|>", "<|pad|>\n<|end|>"):
        assert encoded(pair([says(f"Finish[7]{end}")], [says("Finish[8]")]), chat) == plain
    (pad,) = chat.stop_ids - {chat.end_id}
    ids = chat.content_ids(says("Finish[7]"))
    assert encoded(pair([says("Finish[7]", token_ids=[*ids, pad])], [says("Finish[8]")]), chat) == plain


def test_a_template_that_renders_the_prompt_otherwise_once_a_reply_follows_is_refused(
    tiny: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny, tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    turn = "<|{{ m.role }}|>{% if loop.last %}{{ m.content | trim }}{% else %}{{ m.content }}{% endif %}<|end|>"
    ask = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    template = f"{{% for m in messages %}}{turn}{{% endfor %}}{ask}"
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    with pytest.raises(UserError, match=r"^pair 'p': the chat template renders the prompt differently once a reply"):
        encode_pairs([pair([says("7")], [says("8")], " How many? ")], ChatFormat.load(folder), PairParams())


def test_nothing_follows_the_last_scored_token(chat: ChatFormat) -> None:
    newline = ChatFormat.load(Path(chat._where), "zephyr")
    one = encoded(pair([says("Finish[7]"), asks("Episode finished")], [says("Finish[8]")]), newline)
    assert one.real.ids[-1] == one.generated.ids[-1] == newline.end_id


def test_token_ids_generated_by_the_model_are_kept(chat: ChatFormat) -> None:
    bytewise = [chat.content_ids(says(letter))[0] for letter in "apples"]
    assert bytewise != chat.content_ids(says("apples"))
    one = encoded(pair([says("apples")], [says("apples", token_ids=bytewise, finish="stop")]), chat)
    assert one.generated.ids[-len(bytewise) - 1 : -1] == bytewise
    assert not one.identical


def test_a_reply_cut_at_the_token_limit_has_no_end_token(chat: ChatFormat) -> None:
    counters = PairCounters()
    one = encode_pair(pair([says("a")], [says("b", finish="length")]), chat, PairParams(), counters)
    assert one is not None
    assert scored(one.generated, chat) == "b"
    assert counters.cut_responses == 1
    later = pair([says("a", finish="length"), asks("Go on."), says("b")], [says("c")])
    assert encode_pairs([later], chat, PairParams())[1].cut_responses == 0  # the side itself was not cut


WORDS = st.text(alphabet="abc 123[]", min_size=1, max_size=60)


@given(WORDS, WORDS, WORDS, st.integers(10, 90), st.integers(2, 60), st.sampled_from(["keep_end", "keep_start"]))
def test_truncation_shortens_the_prompt_first_and_then_the_responses(
    tiny: Path, question: str, real: str, generated: str, max_length: int, max_prompt: int, truncation: str
) -> None:
    chat = ChatFormat.load(tiny)
    one = pair([says(real)], [says(generated)], question)
    cfg: dict[str, Any] = {
        "max_length": max_length,
        "max_prompt_length": min(max_prompt, max_length - 1),
        "truncation": truncation,
    }
    whole = encoded(one, chat, max_length=10_000)
    prompt = chat.encode(one.prompt, add_generation_prompt=True).ids
    responses = [side.ids[len(prompt) :] for side in (whole.real, whole.generated)]
    counters = PairCounters()
    cut = encode_pair(one, chat, PairParams(overlong="truncate", **cfg), counters)
    assert cut is not None
    if len(prompt) + max(map(len, responses)) <= max_length:
        assert cut == whole
        assert not counters.truncated_prompts
        return
    size = min(len(prompt), int(cfg["max_prompt_length"]))
    kept = prompt[len(prompt) - size :] if truncation == "keep_end" else prompt[:size]
    # The budget depends on the kept prompt's actual length, not on max_prompt_length.
    budget = max_length - len(kept)
    assert [side.ids for side in (cut.real, cut.generated)] == [kept + response[:budget] for response in responses]
    assert counters.truncated_prompts == (len(kept) < len(prompt))
    assert counters.truncated_responses == sum(len(response) > budget for response in responses)
    for side, response in zip((cut.real, cut.generated), responses, strict=True):
        assert (side.ids[-1] == chat.end_id) == (len(response) <= budget)  # a cut response has no end of turn
        assert side.trained == len(side.ids) - len(kept)


def test_without_a_prompt_limit_truncation_leaves_the_prompt_half_of_max_length(chat: ChatFormat) -> None:
    one = pair([says("a" * 100)], [says("b" * 100)], "Why? " * 30)
    prompt = chat.encode(one.prompt, add_generation_prompt=True).ids
    assert len(prompt) > 61
    cut = encoded(one, chat, overlong="truncate", max_length=61)
    for side in (cut.real, cut.generated):
        assert (len(side.ids), side.trained) == (61, 31)
        assert side.ids[:30] == prompt[-30:]


def test_overlong_pairs_are_left_out_by_default_and_counted(chat: ChatFormat) -> None:
    short, long = pair([says("a")], [says("b")]), pair([says("a")], [says("b" * 100)])
    kept, counters = encode_pairs([short, long, short], chat, PairParams(max_length=60))
    assert len(kept) == counters.pairs == 2
    assert counters.dropped_long == 1


def test_pairs_with_an_unscored_side_are_dropped_and_identical_pairs_are_counted(chat: ChatFormat) -> None:
    silent = pair([says("a")], [says("b", weight=0.0)])
    same = pair([says("a")], [says("a", token_ids=chat.content_ids(says("a")), finish="stop")])
    kept, counters = encode_pairs([silent, same, pair([says("a")], [says("b")])], chat, PairParams())
    assert [one.identical for one in kept] == [True, False]
    assert (counters.pairs, counters.identical, counters.dropped_empty) == (2, 1, 1)


def test_a_prompt_limit_that_leaves_no_room_for_a_response_is_refused() -> None:
    for limit in (512, 600):
        values = {"rise": {"overlong": "truncate", "max_length": 512, "max_prompt_length": limit}}
        with pytest.raises(
            UserError,
            match=rf"rise: max_prompt_length \({limit}\) leaves no room for the response in max_length \(512\)",
        ):
            load_section(values, "rise", PairParams, "params.yaml")


def test_an_explicit_prompt_limit_is_checked_even_without_truncation() -> None:
    values = {"rise": {"max_length": 512, "max_prompt_length": 512}}
    with pytest.raises(UserError, match=r"max_prompt_length \(512\) leaves no room"):
        load_section(values, "rise", PairParams, "params.yaml")


def test_errors_about_malformed_sides_name_the_pair(chat: ChatFormat) -> None:
    for real, said in (
        ([], "must begin with an assistant message"),
        ([asks("Well?")], "must begin with an assistant message"),
        ([says("a"), Message(role="user", content="7", weight=1.0)], "only assistant messages can have a weight"),
    ):
        with pytest.raises(UserError, match=f"^pair 'p': .*{said}"):
            encode_pairs([pair(real, [says("b")])], chat, PairParams())


def test_pairs_of_the_same_tokens_of_which_others_are_scored_have_scores_of_their_own() -> None:
    ids = [5, 6, 7]
    last, both = EncodedExample(ids, [0.0, 0.0, 1.0]), EncodedExample(ids, [0.0, 1.0, 1.0])
    assert EncodedPair(last, last).identical
    assert not EncodedPair(last, both).identical
    assert len({EncodedPair(*sides).key for sides in ((last, last), (last, both), (both, last))}) == 3


def test_the_first_token_is_not_scored_if_the_prompt_has_no_tokens(chat: ChatFormat) -> None:
    plain = ChatFormat.load(Path(chat._where), "text")
    alone = encoded(pair([says("3 + 4 = 7")], [says("3 + 4 = 8")], question=""), plain)
    for side in sequences_of([alone]):
        assert side.token_weights == [0.0] + [1.0] * (len(side.ids) - 1)


def test_pairs_can_be_recovered_from_their_flat_list_of_sequences(chat: ChatFormat, duels: Maker) -> None:
    pairs, _ = encode_pairs(duels(5), chat, PairParams())
    assert pairs_of(sequences_of(pairs)) == pairs
    assert len({one.key for one in pairs}) == 5


def test_importing_the_training_module_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, selfimprove.methods.spin.training; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
