"""tokenizer: a small one trained on the demonstrations, or the named model's own, with the chat template all share."""

from selfimprove.base_model import BaseParams, resolve_model
from selfimprove.pipeline.params import load_section, read_yaml
from selfimprove.pipeline.stage import PARAMS_FILE, Stage, stage
from selfimprove.records import Example, read_jsonl
from selfimprove.tokenizer import TokenizerParams, copy_tokenizer, train_tokenizer


@stage("tokenizer", "tokenizer", TokenizerParams)
def main(stage: Stage[TokenizerParams]) -> None:
    base = load_section(read_yaml(PARAMS_FILE), "base", BaseParams, str(PARAMS_FILE))
    demonstrations = stage.input("data/rise/base/train") / "examples.jsonl"
    stage.narrow((stage.params, base.model, base.revision, base.chat_template))

    folder = stage.output("models/tokenizer")
    if base.model is None:
        examples = read_jsonl(demonstrations, Example)
        train_tokenizer((m.content for example in examples for m in example.messages), stage.params, folder)
    else:
        copy_tokenizer(resolve_model(base), folder, base.chat_template)


if __name__ == "__main__":
    main()
