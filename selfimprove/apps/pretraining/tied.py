"""Ties the embedding and the output layer while the base is trained; the published folder has two equal matrices.

With separate matrices, each word must be learnt twice before it can be copied (docs/experiments.md). The engines need
separate matrices because they reload weights in place.
"""

import json
from pathlib import Path

from selfimprove.core.publish import write_json

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def tie(folder: Path, *, tied: bool = True) -> None:
    """Remove the output layer from a Llama folder, so that the embedding serves as output layer.

    With ``tied`` false: add an output layer to a tied folder, as a copy of the embedding.
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
