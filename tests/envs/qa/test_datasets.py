"""Ids of questions: unique, and those of the file where possible."""

from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.datasets import own_ids


@given(st.lists(st.sampled_from(["a", "a-2", "a-3", "b"]), max_size=8))
def test_ids_of_repeated_questions_are_unique_and_first_ones_are_kept(names: list[str]) -> None:
    found = [
        question.id for question in own_ids([Question(id=name, task="t", question="?", gold="1") for name in names])
    ]
    assert len(set(found)) == len(names)
    assert [own for place, own in enumerate(found) if names[place] not in names[:place]] == list(dict.fromkeys(names))
