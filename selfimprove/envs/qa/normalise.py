"""HotpotQA's answer normaliser, exact match and F1, also used for Bamboogle (docs/spin.md, S25 and S26).

::

    normalise("The  Cat, a hat!")          "cat hat"
    f1("Tolma town", "Tolma")              0.667
    f1("yes, it is", "yes")                0.0      the guard: yes and no get no partial score
"""

import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
GUARDED = frozenset({"yes", "no", "noanswer"})


def normalise(answer: str) -> str:
    """Lower-case, delete ASCII punctuation, replace the words a, an, the by a space, collapse white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def compared(answer: str, gold: str) -> tuple[str, str]:
    """The two texts to compare: normalised or, if normalisation leaves nothing of either, only lower-cased."""
    pred, gt = normalise(answer), normalise(gold)
    if not pred and not gt:
        return answer.lower(), gold.lower()
    return pred, gt


def exact_match(answer: str, gold: str) -> bool:
    """Whether both have the same normal form; an empty answer equals nothing."""
    if not answer.strip():
        return False
    pred, gt = compared(answer, gold)
    return pred == gt


def f1(answer: str, gold: str) -> float:
    """F1 of the two multisets of words, in [0, 1]; 0 if the guard forbids a partial score."""
    if not answer.strip():
        return 0.0
    pred, gt = normalise(answer), normalise(gold)
    if not pred and not gt:
        return float(exact_match(answer, gold))
    if pred != gt and (pred in GUARDED or gt in GUARDED):
        return 0.0
    shared = sum((Counter(pred.split()) & Counter(gt.split())).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(pred.split()), shared / len(gt.split())
    return 2 * precision * recall / (precision + recall)
