"""base@<method>: the model that a method starts from, with its tokenizer: built from scratch or a named model's.

Also writes ``train.json`` with 0 lineage tokens for this model, to which its successors add their own, and for
``NONE``, which rows that match no other row's tokens name as ``match``.
"""

from itertools import islice
from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.publish import write_json
from selfimprove.core.records import read_rows
from selfimprove.core.yaml import read_yaml
from selfimprove.methods.rows import NONE, START
from selfimprove.models.base import BaseSection, resolve_model, take_weights
from selfimprove.models.base_adapter import named_base, with_full_weights
from selfimprove.models.scratch import build_scratch_model
from selfimprove.models.tokenizer import TokenizerSection, copy_tokenizer, train_tokenizer
from selfimprove.pipeline.params import PARAMS_FILE, load_section
from selfimprove.pipeline.stage import Stage, stage


@stage("base", "base", BaseSection)
def main(stage: Stage[BaseSection]) -> None:
    cfg = stage.pick(dict(stage.params))
    values = read_yaml(PARAMS_FILE)
    tokenizers = load_section(values, "tokenizer", TokenizerSection, str(PARAMS_FILE))
    trained = dict(tokenizers)[stage.item]
    texts = stage.input(f"data/{stage.item}/texts.jsonl")
    stage.narrow((cfg, trained, named_base(cfg.model)))

    folder = stage.output(f"models/{stage.item}/{START}")
    if cfg.model is None:
        rows = [row for _, row in islice(read_rows(texts), trained.texts)]
        fixed = [str(row["text"]) for row in rows if row.get("fixed")]
        tokenizer = stage.scratch / "tokenizer"
        train_tokenizer((str(row["text"]) for row in rows if row["text"] not in fixed), trained, tokenizer, fixed=fixed)
        build_scratch_model(cfg.arch, tokenizer, folder, stage.run.seed)
    else:
        model = with_full_weights(resolve_model(cfg), cfg, stage.scratch / "merged")
        from selfimprove.models.check import check_base
        from selfimprove.models.loading import check_vocabulary

        meta = check_base(model)
        take_weights(model, folder, own=model == Path(cfg.model))
        copy_tokenizer(model, folder, cfg.chat_template)
        if meta is not None:
            check_vocabulary(model, meta, ChatFormat.load(folder).vocab_size)
    for name in (START, NONE):
        write_json(stage.output(f"results/{stage.item}/{name}/train.json"), {"lineage_tokens": 0})


if __name__ == "__main__":
    main()
