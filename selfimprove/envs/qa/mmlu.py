"""MMLU: four-way multiple choice in 57 subjects (Hendrycks et al. 2021, MIT).

A question of ``<folder>/test/astronomy_test.csv`` (no header: question, four options, letter)::

    question  Question: Why is the sky blue?
              A. Because the molecules that compose the Earth's atmosphere have a blue-ish color.
              B. …
    gold      D
    "D", "(D)", "D. Because …"  ->  reward 1        "Both A and D"  ->  reward 0

A leading, separate letter is the answer (docs/spin.md, S28). The original reads "Both…" as B, and its task order is the
file system's.
"""

import re
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Question, Score, content_id, read_table

LETTERS = "ABCD"
SPLITS = {"train": "auxiliary_train", "dev": "dev", "val": "val", "test": "test"}
# A separate letter: "D-Day" and "D's" are words.
_LEADING = re.compile(r"[\W_]*([A-D])(?!_*[^\W_]|['’/–-]\w)", re.IGNORECASE)


def load(split: str, folder: Path) -> list[Question]:
    """The questions in all CSV files of the split's folder, in file order, with files sorted by name.

    ``astronomy_test`` is the split of one subject, as in the original: the file of that name.

    Raises:
        UserError: no such split or folder, no file, or a line that is not a question with four options and a letter.
    """
    subject, _, part = split.rpartition("_")
    if part not in SPLITS:
        raise UserError(
            f"mmlu has no split {split!r}; choose one of {', '.join(SPLITS)}, or a subject's, such as astronomy_test."
        )
    named = folder / (SPLITS[part] if (folder / SPLITS[part]).is_dir() else part)
    files = sorted(named.glob("*.csv"), key=lambda path: path.name)
    if not files:
        raise UserError(f"{named} contains no *.csv; unpack MMLU's data there.")
    if subject:
        files = [file for file in files if file.stem == split]
        if not files:
            raise UserError(f"{named / split}.csv does not exist; choose a subject of the files there.")
    questions = []
    for path in files:
        for place, cells in read_table(path):
            if len(cells) != 6 or cells[5].strip() not in [*LETTERS] or not all(cell.strip() for cell in cells):
                raise UserError(f"{place}: expected a question, four options and a letter; fix or delete the line.")
            options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, cells[1:5], strict=True))
            text = f"Question: {cells[0]}\n{options}"
            questions.append(
                Question(
                    id=content_id("mmlu", path.stem, text),
                    task="mmlu",
                    question=text,
                    gold=cells[5].strip(),
                    kind=path.stem.removesuffix(f"_{part}"),
                )
            )
    return questions


def letter_of(answer: str) -> str:
    """The option letter at the start of the answer, in upper case; "" if there is none.

    "D-Day" starts with a word. The text after the letter is ignored, as in the original, which rewards "A, D" and
    "A cat" for A.
    """
    match = _LEADING.match(answer)
    return match[1].upper() if match else ""


def grade(answer: str, gold: str) -> Score:
    """Right if the answer starts with the gold letter; F1 is 1 if right, else 0."""
    pred = letter_of(answer)
    right = pred == gold
    return Score(float(right), right, float(right), pred, gold)
