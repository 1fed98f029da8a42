"""tokenizer@<method>: a small one trained on the method's texts, or its named model's own, with the chat template."""

from itertools import islice

from selfimprove.base_model import BaseSection, resolve_model
from selfimprove.pipeline.params import load_section, read_yaml
from selfimprove.pipeline.stage import PARAMS_FILE, Stage, stage
from selfimprove.records import read_rows
from selfimprove.tokenizer import TokenizerSection, copy_tokenizer, train_tokenizer


@stage("tokenizer", "tokenizer", TokenizerSection)
def main(stage: Stage[TokenizerSection]) -> None:
    method, cfg = stage.item, stage.pick(dict(stage.params))
    base = dict(load_section(read_yaml(PARAMS_FILE), "base", BaseSection, str(PARAMS_FILE)))[method]
    texts = stage.input(f"data/{method}/texts.jsonl")
    stage.narrow((cfg, base.model, base.revision, base.chat_template))

    folder = stage.output(f"models/tokenizer/{method}")
    if base.model is None:
        rows = [row for _, row in islice(read_rows(texts), cfg.texts)]
        fixed = [str(row["text"]) for row in rows if row.get("fixed")]
        train_tokenizer((str(row["text"]) for row in rows if row["text"] not in fixed), cfg, folder, fixed=fixed)
    else:
        copy_tokenizer(resolve_model(base), folder, base.chat_template)


if __name__ == "__main__":
    main()
