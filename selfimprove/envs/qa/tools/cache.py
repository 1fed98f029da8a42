"""Caches the results of a paid search by exact query (docs/spin.md, S23).

Every result is written immediately; the original saves at exit, so that a crash loses paid results. A truncated last
line is dropped on reading. Any number of processes can use the same file at the same time; a query that two of them ask
at once is paid twice. A file with other content is refused.
"""

from pathlib import Path
from threading import Lock

from selfimprove.core.errors import UserError, first_line
from selfimprove.core.journal import Journal, begins_as_journal
from selfimprove.core.records import only_regular, plain_text
from selfimprove.envs.qa.tools.search import Tool


class CachedSearch:
    """Wraps ``search`` with a file of its results, including empty ones, but not failures.

    Thread-safe; if several threads request the same query at once, ``search`` is called only once.
    """

    def __init__(self, search: Tool, file: Path) -> None:
        """Open the file, or create it.

        Raises:
            UserError: it has other content, is not a regular file, or can't be opened or created.
        """
        self._search = search
        self._journal = _opened(file)
        self._lock = Lock()
        self._asking: dict[str, Lock] = {}
        self.hits = 0

    def __call__(self, query: str) -> str | None:
        """See ``tools.search.Tool``.

        Raises:
            UserError: the answer can't be stored: every later one would be paid for and lost, too.
            Exception: what ``search`` raises.
        """
        with self._lock:
            asking = self._asking.setdefault(query, Lock())
        with asking:
            with self._lock:
                if query in self._journal:
                    self.hits += 1
                    return self._journal[query]
            answer = self._search(query)
            if answer is not None:
                answer = plain_text(answer)  # a service's JSON may contain lone surrogates, which no file can hold
            with self._lock:
                self._asking.pop(query, None)
                try:
                    self._journal.add(query, answer)
                except OSError as error:
                    raise UserError(
                        f"tools.cache: {self._journal.path} can't be written ({error.strerror}); free some space and "
                        "run it again: stored answers are kept."
                    ) from None
            return answer

    def close(self) -> None:
        self._journal.close()


def _opened(file: Path) -> Journal:
    try:
        only_regular(file)
        if file.is_dir():
            raise UserError(f"tools.cache: {file} is a folder; name a file.")
        if file.exists() and not begins_as_journal(file):
            raise UserError(f"tools.cache: {file} is not a cache of search results; name another file.")
        file.parent.mkdir(parents=True, exist_ok=True)
        return Journal(file, shared=True)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"tools.cache: {file} cannot be opened ({reason}); name another file.") from None
