"""The search engine: BM25 (k1 = 0.9, b = 0.4) over stemmed English words, as the original's Lucene is set.

Rankings are like Lucene's, not the same. Equal scores keep the catalogue's order, so the
result is a function of the words alone.
"""

from collections.abc import Sequence
from functools import lru_cache
from threading import Lock

import bm25s
import numpy as np
import Stemmer

from selfimprove.envs.webshop.catalogue import Product

HITS = 50
"""At most so many results a search (the original's SEARCH_RETURN_N)."""


class Index:
    """Read-only once built; safe to share between any number of copies of the environment, in threads too."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._stemmer = Stemmer.Stemmer("english")
        self._one_at_a_time = Lock()  # a stemmer is not for two threads at once
        self._bm25 = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        self._bm25.index(self._tokens([document(product) for product in products]), show_progress=False)
        self._known = frozenset(self._bm25.vocab_dict)
        self.search = lru_cache(maxsize=4096)(self._search)

    def _search(self, keywords: str) -> tuple[int, ...]:
        """The places in the catalogue of at most ``HITS`` products that share a word with ``keywords``, best first."""
        words = [word for word in self._tokens([keywords])[0] if word in self._known]
        if not words:
            return ()
        scores = self._bm25.get_scores(words)
        order = np.argsort(-scores, kind="stable")[:HITS]
        return tuple(int(place) for place in order if scores[place] > 0)

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        with self._one_at_a_time:
            return bm25s.tokenize(
                texts,
                token_pattern=r"\w+",
                stopwords="english",
                stemmer=self._stemmer,
                return_ids=False,
                show_progress=False,
            )


def document(product: Product) -> str:
    """What of a product is searched: title, description, first feature and options, lower-cased (as the original)."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join([product.title, product.description, product.bullet_points[0], options]).lower()
