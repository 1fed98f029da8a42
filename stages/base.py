"""base: the model that everything starts from, built from scratch or taken as it is."""

from selfimprove.base_model import BaseParams, resolve_model, take_weights
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.tokenizer import copy_tokenizer
from selfimprove.training.scratch_model import build_scratch_model


@stage("base", "base", BaseParams, heavy=True)
def main(stage: Stage[BaseParams]) -> None:
    tokenizer = stage.input("models/tokenizer")

    folder = stage.output("models/base")
    if stage.params.model is None:
        build_scratch_model(stage.params.arch, tokenizer, folder, stage.run.seed)
    else:
        take_weights(resolve_model(stage.params), folder)
        copy_tokenizer(tokenizer, folder, None)


if __name__ == "__main__":
    main()
