import math
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Paragraph
from selfimprove.envs.qa.tools.bm25 import Bm25, LocalSearch, read_corpus, words
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.qa.tools.search import cut_near

TEXTS = st.lists(
    st.lists(st.sampled_from(["ab", "abc", "a_b", "ä", "ß", "x1", "1", "the"]), max_size=8).map(" ".join), max_size=8
)


def formula(texts: Any, query: Any, k1: float = 1.5, b: float = 0.75) -> Any:
    """The formula of docs/spin.md, S20: the scores, and the texts above 0 by score; ties keep the corpus order."""
    documents = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, documents)) / max(1, len(documents))
    scores = []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            df = sum(word in other for other in documents)
            tf = document.count(word)
            if tf:
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                score += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores, sorted((i for i in range(len(texts)) if scores[i] > 0), key=lambda i: (-round(scores[i], 12), i))


@settings(max_examples=60)
@given(TEXTS, st.lists(st.sampled_from(["ab", "a_b", "Ä", "x1", "1", "the", "nowhere"]), max_size=5).map(" ".join))
def test_ranking_equals_the_formula_and_ties_keep_the_corpus_order(texts: Any, query: Any) -> None:
    scores, order = formula(texts, query)
    got = Bm25(texts).ranked(query, len(texts))
    assert sorted(got) == sorted(order)
    assert [scores[i] for i in got] == pytest.approx([scores[i] for i in order])
    for one, other in pairwise(got):
        assert one < other or texts[one] != texts[other]  # equal texts tie exactly


def test_in_the_plain_set_up_a_word_in_most_texts_weighs_a_quarter_of_the_mean() -> None:
    """Okapi's idf of such a word is negative. Here the mean is 0.92, so "the" weighs 0.23, and "ab" 0.34."""
    texts = ["the x1 x2", "the x3 x4", "the x5 x6", "ab x7 x8", "ab x9 x0"]
    assert Bm25(texts, okapi=True).ranked("the ab", 5) == [3, 4, 0, 1, 2]


def test_a_word_twice_in_the_query_counts_twice() -> None:
    assert Bm25(["owl", "sea"]).ranked("sea owl", 2) == [0, 1]
    assert Bm25(["owl", "sea"]).ranked("sea owl sea", 2) == [1, 0]


def test_ties_are_broken_by_corpus_order_at_any_count() -> None:
    texts = ["owl sea", "owl", "owl", "owl", "sea"]
    assert Bm25(texts).ranked("owl", 5) == [1, 2, 3, 0]
    assert Bm25(texts).ranked("owl", 2) == [1, 2]
    many = ["sea" if place % 3 else "owl" for place in range(300)]  # an unstable sort would reorder so many
    assert Bm25(many).ranked("owl", 300) == list(range(0, 300, 3))


def test_title_and_text_are_searched_and_the_text_is_returned() -> None:
    corpus = [Paragraph(title="Tolma", text="A town."), Paragraph(title="Kesby", text="Another town.")]
    corpus += [Paragraph(title=f"R{i}", text=f"River number {i}.") for i in range(9)]
    search = LocalSearch(corpus)
    assert search("where is KESBY?") == "Another town."
    assert search.ranked("town tolma", 2) == ["Tolma", "Kesby"]
    plain = LocalSearch(corpus, setup="plain")
    assert plain("kesby") is None  # the plain set-up does not see titles
    assert plain("another") == "Another town."
    assert plain("town") is None  # nor does it separate words from a full stop
    assert plain.ranked("TOWN.", 2) == ["Tolma", "Kesby"]


def test_a_query_without_a_match_returns_none() -> None:
    search = LocalSearch([Paragraph(title="Tolma", text="A town.")])
    for query in ("zzyx", "", "?!", " "):
        assert search(query) is None
    assert LocalSearch([])("tolma") is None
    assert LocalSearch([Paragraph(title="", text="...")])("tolma") is None


def test_a_result_is_cut_near_400_characters_or_the_params_length() -> None:
    corpus = [Paragraph(title="Owl", text="owl " * 200)]
    assert 390 <= len(str(LocalSearch(corpus)("owl"))) <= 400
    assert 40 <= len(str(LocalSearch(corpus, cut=50)("owl"))) <= 50
    params = ToolsParams()
    assert (params.k1, params.b, params.cut, params.setup) == (1.5, 0.75, 400, "title_text")


def test_words_are_lower_cased_runs_of_word_characters() -> None:
    assert words("The Hork-Bajir's 2nd_ÄRA!") == ["the", "hork", "bajir", "s", "2nd_ära"]


def test_a_paragraph_is_cut_near_the_limit_at_a_sentence_or_else_at_a_word() -> None:
    assert cut_near("Short.") == "Short."
    assert cut_near("One. Two three.", 8) == "One."
    assert cut_near("One. " + "word " * 40, 40) == "One. word word word word word word ..."
    assert cut_near("a" * 100, 10) == "aaaaaa ..."
    assert cut_near("See " + "y" * 500, 40) == "See " + "y" * 32 + " ..."
    long = "This is a sentence of some forty characters. " * 20
    assert cut_near(long) == ("This is a sentence of some forty characters. " * 8).strip()
    assert len(cut_near(long)) == 359


@given(st.text(max_size=600), st.integers(-3, 400))
def test_a_cut_text_never_exceeds_the_limit_and_has_no_newline(text: str, length: int) -> None:
    cut = cut_near(text, length)
    assert len(cut) <= max(length, 0)
    assert "\n" not in cut


def test_an_index_can_be_queried_from_many_threads() -> None:
    search = LocalSearch([Paragraph(title=f"T{i}", text=f"word{i} common") for i in range(200)])
    with ThreadPoolExecutor(8) as pool:
        assert (
            list(pool.map(search, [f"word{i}" for i in range(200)] * 3)) == [f"word{i} common" for i in range(200)] * 3
        )


def test_a_corpus_file_with_a_bad_row_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"title": "a", "text": "b"}\n{"title": "a"}\n')
    with pytest.raises(UserError, match=r"corpus\.jsonl, line 2: field 'text'"):
        read_corpus(file)
