"""Schemas of the engines in a params file; the key ``engine`` selects one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from selfimprove.core.params import Section, VariableName

POLICY = "policy"
"""Value of ``model``: the model that the iteration starts from; any other value is a model folder."""

MOST_ROWS = 8192
"""Maximum rows of a batch; the engine checks that they fit this machine's memory (``engines/cpu/slots.py``)."""


def _check_count(value: object) -> object:
    if value == "auto" or (type(value) is int and 1 <= value <= MOST_ROWS):
        return value
    raise ValueError(f"expected a whole number from 1 to {MOST_ROWS}, or auto, got {value!r}")


CountOrAuto = Annotated[int | Literal["auto"], BeforeValidator(_check_count)]


class TransformersEngineConfig(Section):
    """Our batched decoder for a transformers model: exact on CPU, also runs on GPUs (``engines/cpu/engine.py``).

    ``replicas`` processes divide the slots and the run's threads (``engines/cluster/replicas.py``).
    """

    engine: Literal["transformers"]
    model: str = POLICY
    chat_template: str | None = None
    slots: CountOrAuto = Field(
        default="auto",
        description="sequences decoded concurrently, over all replicas; auto: chosen from the model's size",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="number of processes; on a CPU, one per thread decodes small models fastest",
    )
    context: int = Field(default=256, ge=16, description="capacity of a slot in tokens, prompt and completion together")
    prefill_rows: CountOrAuto = Field(
        default="auto", description="prompts prefilled concurrently by each replica; auto: chosen from the model's size"
    )
    prefill_block: int = Field(default=32, ge=1, description="prompt tokens processed per prefill step")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _replicas_share_slots_of_a_cpu(self) -> TransformersEngineConfig:
        if self.replicas > 1 and self.device != "cpu":
            raise ValueError(
                f"replicas {self.replicas} works only with device: cpu; set replicas to 1 on {self.device}"
            )
        if self.slots != "auto" and self.replicas > self.slots:
            raise ValueError(f"replicas {self.replicas} exceeds slots {self.slots}; raise slots")
        return self


class VllmEngineConfig(Section):
    """vLLM in this process or in ``replicas`` others (``engines/vllm/engine.py``). For a server, use ``openai``."""

    engine: Literal["vllm"]
    model: str = POLICY
    chat_template: str | None = None
    context: int = Field(default=4096, ge=16)
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    replicas: CountOrAuto = Field(
        default="auto",
        description="number of processes, each with its own model; auto: visible GPUs / tensor_parallel (on a CPU: 1)",
    )
    tensor_parallel: int = Field(
        default=1, ge=1, le=1024, description="number of GPUs that each replica's model is sharded over"
    )
    gpu_memory: float = Field(
        default=0.9, gt=0, le=1, description="fraction of each GPU's memory that one replica may use"
    )
    max_sequences: int = Field(
        default=256, ge=1, le=MOST_ROWS, description="sequences decoded concurrently by each replica"
    )
    prefix_caching: bool = True
    enforce_eager: bool = False
    trust_remote_code: bool = False


OWN_FIELDS = frozenset({"messages", "model", "n", "seed", "stream"})
"""Fields of a chat completion's JSON that ``extra_body`` can't change: its samples and their order depend on them."""


class OpenAiEngineConfig(Section):
    """Any OpenAI-compatible endpoint (``engines/openai.py``). The key comes only from the environment or a key file."""

    engine: Literal["openai"]
    base_url: str
    model: str
    api_key_env: VariableName | None = Field(
        default="OPENAI_API_KEY",
        description="environment variable, in capital letters, that holds the API key; null: the endpoint requires no "
        "key",
    )
    api_key_file: str | None = Field(
        default=None, description="file with a line KEY: value, used if the environment variable is unset"
    )
    api_version: str | None = Field(
        default=None, description="Azure OpenAI: sent as ?api-version=; the key is then sent in the api-key header"
    )
    concurrency: int = Field(default=32, ge=1, le=10_000)
    timeout: float = Field(default=120.0, gt=0, description="timeout of a call in seconds")
    tries: int = Field(default=6, ge=1, le=1000)
    backoff: float = Field(
        default=1.0, ge=0, description="seconds before the first retry; doubles with each retry, with jitter"
    )
    backoff_max: float = Field(default=60.0, ge=0)
    send_seed: bool = Field(default=True, description="false: for endpoints that reject the seed field")
    temperature: float | None = Field(
        default=None, ge=0, description="overrides the stage's temperature, for example for a teacher"
    )
    max_tokens: int | None = Field(default=None, ge=1, description="overrides the stage's max_tokens")
    extra_body: dict[str, JsonValue] = Field(
        default={},
        description="fields added to each call's JSON, or replacing its own; null omits a field, such as one that the "
        "model rejects",
    )
    n_per_call: int = Field(
        default=16,
        ge=1,
        le=10_000,
        description="maximum number of samples requested per call; further samples need further calls",
    )

    @field_validator("extra_body")
    @classmethod
    def _leaves_the_samples_to_the_engine(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(OWN_FIELDS & extra.keys()):
            raise ValueError(f"the field {taken[0]!r} belongs to the engine; omit it here")
        return extra


class ScriptedEngineConfig(Section):
    """The environment's own expert as the teacher; with probability ``error_rate`` it makes a plausible mistake."""

    engine: Literal["scripted"]
    error_rate: float = Field(default=0.0, ge=0, le=1)


EngineConfig = Annotated[
    TransformersEngineConfig | VllmEngineConfig | OpenAiEngineConfig | ScriptedEngineConfig,
    Field(discriminator="engine"),
]


def check_own_model(name: str, engines: Mapping[str, EngineConfig], method: str, use: str) -> None:
    """Check the engine that runs a row's own model: it must have a model, and the chat format of the model's training.

    Args:
        name: the engine's name in the section ``engines``.
        method: the method of the section; its base's settings are ``base.<method>``.
        use: what the method uses the engine for, for the message that it is missing.

    Raises:
        ValueError: the engine is missing, is scripted, or sets another model or its own chat template.
    """
    if name not in engines:
        raise ValueError(f"engines: {name!r}, the engine for {use}, is missing; add it")
    cfg = engines[name]
    if isinstance(cfg, ScriptedEngineConfig):
        raise ValueError(
            f"engines.{name}: a scripted engine has no model to train; use another kind here, and give a scripted "
            "teacher a name of its own"
        )
    if isinstance(cfg, OpenAiEngineConfig):
        return
    if cfg.model != POLICY:
        raise ValueError(
            f"engines.{name}.model: every row would be evaluated with this one model; set policy, and set "
            f"base.{method}.model to use a model of your own"
        )
    if cfg.chat_template is not None:
        raise ValueError(
            f"engines.{name}.chat_template: training would use another template; set base.{method}.chat_template, "
            "which applies to both, and remove this line"
        )
