"""How well a classifier tells a model's episodes from the experts', which SPIN should reduce to chance (docs/spin.md).

This is a classifier two-sample test. A classifier trained on some pairs predicts which side of each other pair is the
expert's. Its accuracy is one half if the sides are indistinguishable. It is naive Bayes on the policy's n-grams of one
to three words. A number or capitalised word is replaced by whether it had occurred before, in the question or an
observation::

    She was born in Tolma in 1712.   ->   <new> was born in <read> in <read> .

This detects a miscopied name, but no pair can be classified by the names that it is about.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from selfimprove.core.outcomes import Estimate
from selfimprove.core.records import Message, Pair, mean_and_error
from selfimprove.core.seeds import key_bits

FOLDS = 5
LONGEST = 3
_WORD = re.compile(r"\w+|[^\w\s]")


def told_apart(pairs: Sequence[Pair]) -> Estimate:
    """The share of pairs whose expert side is found by a classifier trained on other pairs; ties count one half.

    A pair's fold (of five) depends only on its id, and so not on the order or number of the other pairs.
    """
    sides = [(_features(pair, pair.real), _features(pair, pair.generated)) for pair in pairs]
    folds = [key_bits("told apart", pair.id) % FOLDS for pair in pairs]
    found: list[float] = []
    for fold in range(FOLDS):
        rest = [side for side, other in zip(sides, folds, strict=True) if other != fold]
        weight = _weights((real for real, _ in rest), (generated for _, generated in rest))
        for (real, generated), other in zip(sides, folds, strict=True):
            if other == fold:
                gap = _score(weight, real - generated) - _score(weight, generated - real)
                found.append(0.5 if gap == 0 else float(gap > 0))
    return mean_and_error(found)


def _weights(real: Iterable[set[str]], generated: Iterable[set[str]]) -> dict[str, float]:
    """n-gram -> log ratio of its add-one counts in experts' and in generated episodes."""
    ours, theirs = (Counter(name for one in side for name in one) for side in (real, generated))
    names = ours.keys() | theirs.keys()
    return {name: math.log((ours[name] + 1) / (theirs[name] + 1)) for name in names}


def _score(weight: dict[str, float], features: set[str]) -> float:
    return math.fsum(weight.get(name, 0.0) for name in features)


def _features(pair: Pair, messages: Sequence[Message]) -> set[str]:
    """The n-grams of the policy's text; none spans an observation."""
    read = {word for message in pair.prompt for word in _WORD.findall(message.content)}
    features: set[str] = set()
    for message in messages:
        words = _WORD.findall(message.content)
        if not message.weight:
            read.update(words)
            continue
        seen = [_mark(word, read) for word in words]
        for length in range(1, LONGEST + 1):
            features.update(" ".join(seen[i : i + length]) for i in range(len(seen) - length + 1))
    return features


def _mark(word: str, read: set[str]) -> str:
    if word[0].isupper() or word.isdigit():
        return "<read>" if word in read else "<new>"
    return word
