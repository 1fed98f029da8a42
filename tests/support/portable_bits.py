"""Prints digests of the exact results of small trainings and a small generation with the shipped model.

``python -m tests.support.portable_bits FOLDER``, in the environment of ``run.kernels: portable``, prints the same on
every x86-64 processor with AVX2.
"""

from __future__ import annotations

import asyncio
import sys
from hashlib import sha256
from pathlib import Path
from random import Random

from selfimprove.core.records import Example, Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_learner import Learner
from selfimprove.methods.reflect_rl.rl_objective import Decision, RLTrajectory
from selfimprove.methods.reflect_rl.rl_policy import Policy, weights_hash
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune

BASE = Path("models/pretrained")
EXPECTED = "2259cefba319cabf fb0c2c8c04ed5e33 d6801b18e71e2e7e"
"""The output with the locked packages."""


def dialogue(index: int) -> list[Message]:
    """A question and its answer; their length varies with ``index``."""
    draw = Random(index)
    numbers = [draw.randint(2, 99) for _ in range(2 + index % 3)]
    asked = f"Mia buys {', then '.join(map(str, numbers))} apples. How many has she?"
    answer = f"She has {sum(numbers)} apples."
    return [Message(role="user", content=asked), Message(role="assistant", content=answer, weight=1.0)]


def trained(folder: Path) -> str:
    """The digest of the weights after a few steps."""
    examples = [Example(id=f"e{i}", messages=dialogue(i)) for i in range(24)]
    params = FinetuneParams(
        epochs=2, batch_size=8, micro_batch_tokens=400, row_tokens=200, max_length=200, lr=1e-3, attention="segments"
    )
    finetune(BASE, examples, folder / "model", params, scratch=folder / "scratch", seed=3, threads=1)
    return sha256((folder / "model/model.safetensors").read_bytes()).hexdigest()[:16]


async def generated(model: Path) -> str:
    """The digest of a few sampled completions and their log-probabilities."""
    cfg = TransformersEngineConfig(engine="transformers", context=128, slots=8, prefill_rows=4, prefill_block=16)
    engine = make_engine(cfg, policy_dir=model, threads=1, expert=None)
    asked = [
        Request(messages=dialogue(i)[:1], seed=SeedKey(run=1, task=f"t{i}", turn=0), max_tokens=24, n=2)
        for i in range(12)
    ]
    answers = await asyncio.gather(*map(engine.generate, asked))
    await engine.close()
    return sha256(repr(answers).encode()).hexdigest()[:16]


def episode(index: int, labels: list[int]) -> RLTrajectory:
    """Random decisions; their number varies with ``index``."""
    draw, steps = Random(index), []
    for _ in range(2 + index % 4):
        prompt = [draw.randrange(20, 300) for _ in range(draw.randrange(3, 40))]
        steps.append(Decision(prompt, draw.choice(labels), labels, -1.6, 1.6, draw.choice([-2.0, 0.1, 1.0])))
    return RLTrajectory(str(index), True, steps)


def reinforced() -> str:
    """The digest of a policy and its critic after a few updates by reinforcement learning, and of their losses."""
    params = RLParams.model_validate(
        {"lr": 1e-3, "row_tokens": 64, "micro_batch_tokens": 150, "critic": {"kind": "mlp", "lr": 1e-2, "every": 2}}
    )
    labels, group = [40, 7, 12, 300, 55], Group()
    policy, body = (Policy(BASE, params.loading(128), 3, labels) for _ in range(2))
    learner = Learner(policy, params, group, 3, body)
    losses: list[float | None] = []
    for iteration in range(6):
        played = [episode(4 * iteration + i, labels) for i in range(4)]
        losses += learner.train(played, iteration=iteration, fresh=True), learner.end_iteration()
    return sha256(repr((weights_hash(policy.model), losses)).encode()).hexdigest()[:16]


if __name__ == "__main__":
    place = Path(sys.argv[1])
    print(trained(place), asyncio.run(generated(place / "model")), reinforced())
