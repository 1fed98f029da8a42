"""tokenizer: a small one trained on the methods' texts, or the named model's own, with the chat template all share."""

from itertools import islice

from selfimprove.base_model import BaseParams, resolve_model
from selfimprove.pipeline.params import load_section, read_yaml
from selfimprove.pipeline.stage import PARAMS_FILE, Stage, stage
from selfimprove.records import read_rows
from selfimprove.tokenizer import TokenizerParams, copy_tokenizer, train_tokenizer


@stage("tokenizer", "tokenizer", TokenizerParams)
def main(stage: Stage[TokenizerParams]) -> None:
    base = load_section(read_yaml(PARAMS_FILE), "base", BaseParams, str(PARAMS_FILE))
    corpora = [stage.input("data/rise/texts.jsonl")]
    stage.narrow((stage.params, base.model, base.revision, base.chat_template))

    folder = stage.output("models/tokenizer")
    if base.model is None:
        texts = (str(row["text"]) for path in corpora for _, row in islice(read_rows(path), stage.params.texts))
        train_tokenizer(texts, stage.params, folder)
    else:
        copy_tokenizer(resolve_model(base), folder, base.chat_template)


if __name__ == "__main__":
    main()
