"""The search engine: BM25 (k1 = 0.9, b = 0.4) over stemmed English words, with the original's Lucene settings.

Rankings are similar to Lucene's, but not identical. Equal scores keep the catalogue's order, so the result depends only
on the words.
"""

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import numpy as np
import Stemmer

from selfimprove.envs import bm25
from selfimprove.envs.webshop.catalogue import Product

HITS = 50
"""The maximum number of results per search (the original's SEARCH_RETURN_N)."""


class Index:
    """Read-only once built; can be shared by any number of copies of the environment, also across threads."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._stemmer = Stemmer.Stemmer("english")
        self._one_at_a_time = Lock()  # the stemmer is not thread-safe
        self._bm25 = bm25.package().BM25(method="lucene", k1=0.9, b=0.4)
        self._bm25.index(self._tokens([document(product) for product in products]), show_progress=False)
        self._known = frozenset(self._bm25.vocab_dict)
        self.search = lru_cache(maxsize=4096)(self._search)

    def _search(self, keywords: str) -> tuple[int, ...]:
        """Catalogue indices of up to ``HITS`` products that share a word with ``keywords``, best first."""
        words = [word for word in self._tokens([keywords])[0] if word in self._known]
        if not words:
            return ()
        scores = self._bm25.get_scores(words)
        order = np.argsort(-scores, kind="stable")[:HITS]
        return tuple(int(place) for place in order if scores[place] > 0)

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        with self._one_at_a_time:
            tokens: list[list[str]] = bm25.package().tokenize(
                texts,
                token_pattern=r"\w+",
                stopwords="english",
                stemmer=self._stemmer,
                return_ids=False,
                show_progress=False,
            )
        return tokens


def document(product: Product) -> str:
    """A product's indexed text: title, description, first feature and options, lower-cased (as in the original)."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, product.bullet_points[0], options]).lower()
