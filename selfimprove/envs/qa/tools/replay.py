"""Replayed search: returns the recorded results of earlier queries (docs/spin.md, S21).

A row of FireAct's file::

    {"query": "director of Beowulf 2007", "snippet": "Robert Zemeckis", "source": "train-hotpotqa"}

A recorded query gets its snippet; any other query gets the snippet of the closest recorded query by BM25.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows
from selfimprove.envs.qa.tools.bm25 import REMEMBERED, Bm25


class ReplaySearch:
    """The tool over (query, snippet) pairs; the first snippet of a repeated query counts."""

    in_place = True

    def __init__(self, pairs: Iterable[tuple[str, str]], *, k1: float = 1.5, b: float = 0.75) -> None:
        self._snippets: dict[str, str] = {}
        for query, snippet in pairs:
            self._snippets.setdefault(query.strip(), snippet)
        self._queries = list(self._snippets)
        self._index = Bm25(self._queries, k1=k1, b=b)
        self._nearest = lru_cache(maxsize=REMEMBERED)(self._search)

    def __call__(self, query: str) -> str | None:
        snippet = self._snippets.get(query.strip())
        return self._nearest(query) if snippet is None else snippet

    def _search(self, query: str) -> str | None:
        best = self._index.ranked(query, 1)
        return self._snippets[self._queries[best[0]]] if best else None


def read_snippets(path: Path) -> list[tuple[str, str]]:
    """The (query, snippet) pairs in a JSONL file; rows without a snippet are skipped.

    Raises:
        UserError: the file is missing, no row has a snippet, or a row has no query.
    """
    pairs = []
    for line, row in read_rows(path):
        query, snippet = row.get("query"), row.get("snippet")
        if not isinstance(query, str) or not (snippet is None or isinstance(snippet, str)):
            raise UserError(f"{path}, line {line}: expected a query and a snippet; fix or delete the line.")
        if snippet and snippet.strip():
            pairs.append((query, snippet))
    if not pairs:
        raise UserError(f"{path}: no row has a snippet; add at least one, or name another file.")
    return pairs
