"""One matrix for reading and writing words while the base is trained, two of equal values in the folder that ships.

With two matrices from the start each word has to be learnt twice before it can be copied (docs/experiments.md). Engines
want two, since they reload weights in place.
"""

import json
from pathlib import Path

from selfimprove.core.publish import write_json

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def tie(folder: Path, *, tied: bool = True) -> None:
    """Take the output layer out of a Llama folder: the embedding is the output layer then.

    ``tied`` false: give a tied folder an output layer of its own, which is the embedding's copy.
    """
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    weights.pop(HEAD, None)
    if not tied:
        weights[HEAD] = weights[EMBEDDING].clone()
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write_json(folder / "config.json", {**config, "tie_word_embeddings": tied})
