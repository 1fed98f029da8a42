"""Runs in XTuner's environment and prints the data that XTuner reads as JSON.

    python -m tests.backends.xtuner_reader RUN_FOLDER ROWS.jsonl

``batches``: the (ids, labels) pairs that the data loader yields under a run's own config, in order. ``turns``: the
pairs that XTuner's own template and tokenising functions create from rows in its turn format, under our ``plain`` chat
format.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from selfimprove.training.xtuner.launch import bridge

bridge()

from mmengine.config import Config, ConfigDict  # noqa: E402
from mmengine.runner import Runner  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from xtuner.dataset.map_fns import template_map_fn  # noqa: E402
from xtuner.dataset.utils import encode_fn  # noqa: E402

PLAIN = ConfigDict(
    SYSTEM="<|system|>{system}<|end|>",
    INSTRUCTION="<|user|>{input}<|end|><|assistant|>",
    SUFFIX="<|end|>",
    SUFFIX_AS_EOS=True,
    SEP="",
)


class QWen2Tokenizer(PreTrainedTokenizerFast):
    """Our tokenizer has no BOS token; XTuner accepts that only from certain classes, such as one of this name."""


def main(folder: Path, rows: Path) -> None:
    """Print one JSON document."""
    config = Config.fromfile(str(folder / "config.py"))
    batches = [
        [batch["data"]["input_ids"][0].tolist(), batch["data"]["labels"][0].tolist()]
        for batch in Runner.build_dataloader(config.train_dataloader, seed=0)
    ]
    tokenizer = QWen2Tokenizer.from_pretrained(str(folder / "start"))
    turns = []
    for line in rows.read_text(encoding="utf-8").splitlines():
        encoded = encode_fn(template_map_fn(json.loads(line), PLAIN), tokenizer, max_length=10_000)
        turns.append([encoded["input_ids"], encoded["labels"]])
    print("\n" + json.dumps({"batches": batches, "turns": turns}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
