"""Truncates what the model sees of a file: to a number of lines that depends on the suffix, and to 500 tokens.

``cat scores.csv`` of a long table shows its first five lines, then ::

    ...
    Large file, only display first 5 lines and 500 tokens.

The limits are the original's (docs/reflect-rl.md, L33).
"""

import re
from collections.abc import Callable
from itertools import islice

CODE_SUFFIXES = (".py", ".c", ".cpp", ".cxx", ".cc", ".h", ".hpp", ".hxx", ".cs", ".java", ".go", ".ipynb")
DATA_SUFFIXES = (".csv", ".tsv")
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".json", ".yaml", ".yml")
SHELL_SUFFIXES = (".sh", ".bash", ".zsh")
ALLOWED_SUFFIXES = CODE_SUFFIXES + DATA_SUFFIXES + TEXT_SUFFIXES + SHELL_SUFFIXES

MAX_TOKENS = 500

Cut = Callable[[str, int], str]
"""(text, n) -> the part of the text with its first n tokens; the text itself if it has no more than n."""

# Like the splitting step of byte-pair vocabularies: words with the preceding blank, up to three digits, runs of symbols
# or of blanks. Long pieces are split, so that 500 tokens are never more than 8,000 characters.
_PIECE = re.compile(r" ?[^\W\d_]{1,16}|\d{1,3}| ?[^\w\s]{1,16}|_{1,16}|\s{1,16}|\w")


def first_tokens(text: str, limit: int) -> str:
    """A ``Cut`` without a vocabulary: its tokens are about as long as a large model's, and the same everywhere.

    The original counts GPT-4's tokens, whose vocabulary has to be downloaded.
    """
    last = next(islice(_PIECE.finditer(text), limit, limit + 1), None) if limit > 0 else None
    return text[: last.start()] if last else text if limit > 0 else ""


def token_count(text: str) -> int:
    """Number of tokens, as counted by ``first_tokens``."""
    return sum(1 for _ in _PIECE.finditer(text))


def max_lines(name: str) -> int:
    """Maximum lines shown of a file, by its suffix; 10 for shell scripts and unknown suffixes."""
    if name.endswith(CODE_SUFFIXES):
        return 1000
    if name.endswith(DATA_SUFFIXES):
        return 5
    return 100 if name.endswith(TEXT_SUFFIXES) else 10


def truncate(name: str, content: str, complete: bool = True, cut: Cut = first_tokens) -> str:
    """The visible part of a file, with a notice if it is not all; ``complete``: whether ``content`` is the whole file.

    As in the original, a final newline counts as followed by another line.
    """
    limit = max_lines(name)
    lines = content.split("\n", limit)
    if len(lines) > limit:
        content, complete = "\n".join(lines[:limit]), False
    shown = cut(content, MAX_TOKENS)
    if complete and shown == content:
        return content
    return f"{shown}\n...\nLarge file, only display first {limit} lines and {MAX_TOKENS} tokens.\n"
