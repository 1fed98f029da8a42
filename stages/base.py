"""base@<method>: the model that the method starts from, built from scratch or taken as it is."""

from selfimprove.base_model import BaseSection, resolve_model, take_weights
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.tokenizer import copy_tokenizer
from selfimprove.training.scratch_model import build_scratch_model


@stage("base", "base", BaseSection, heavy=True)
def main(stage: Stage[BaseSection]) -> None:
    cfg = stage.pick(dict(stage.params))
    tokenizer = stage.input(f"models/tokenizer/{stage.item}")
    stage.narrow(cfg)

    folder = stage.output(f"models/base/{stage.item}")
    if cfg.model is None:
        build_scratch_model(cfg.arch, tokenizer, folder, stage.run.seed)
    else:
        take_weights(resolve_model(cfg), folder)
        copy_tokenizer(tokenizer, folder, None)


if __name__ == "__main__":
    main()
