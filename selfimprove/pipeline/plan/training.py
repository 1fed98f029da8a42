"""Memory, disk and time of the trainers (``training/loading.py``, ``job.py``, ``zero.py``, ``rl_learner.py``)."""

from collections.abc import Iterable
from dataclasses import dataclass

from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.models.merging import KEPT
from selfimprove.pipeline.plan import formulas as f
from selfimprove.pipeline.plan.hardware import Hardware
from selfimprove.pipeline.plan.inference import PROCESS_CPU, PROCESS_GPU, PROCESS_HOST
from selfimprove.pipeline.plan.work import Training
from selfimprove.training.config import FinetuneParams, LauncherConfig

COMPUTE = 0.35
"""Assumed utilisation of a GPU's peak operations in training, including recomputation. An H100 reached 0.30 with a
model of 1.5B parameters (docs/gpu.md)."""

LAUNCH_LAYER = 4e-3
"""Minimum seconds of the trainer to launch one layer's kernels, forward and backward, whatever the number of tokens.
Adapters double them, recomputation adds a third. On a rented H100, 30 layers took 95 ms without the trainer, and 183 ms
with it in the first nine steps, in which torch still allocated memory. On an H200, with three runs of reinforcement
learning at once, an update's micro-batch of 4,096 tokens took about 170 ms. A faster processor needs less."""

RATE = {"bfloat16": 1.0, "float16": 1.0, "tf32": 0.5, "float32": 1 / 15}
"""Throughput of each precision relative to bfloat16, on GPUs with tensor cores."""

ZERO2_BUCKETS, ZERO3_LIVE = 3e9, 2e9
"""Bytes of DeepSpeed's buffers: stage 2's buckets of 5e8 elements (two for overlapping reduction, one for gathering);
stage 3's simultaneously gathered parameters (``stage3_max_live_parameters`` 1e9)."""


@dataclass(frozen=True)
class TrainingEstimate:
    """A training run with its model. Bytes are per GPU (``gpus`` 0: it runs on the CPU); ``output``: the published
    model; ``checkpoints``: on disk during the run; ``held_dtype``: precision of the embeddings, and thus of a KV cache
    computed from them."""

    place: str
    params: FinetuneParams | RLParams
    gpus: int
    states: f.States
    activations: float
    other: float
    host: float
    output: float
    checkpoints: float
    seconds: float
    held_dtype: str
    opponent: tuple[float, float] = (0.0, 0.0)
    problems: tuple[str, ...] = ()

    def remedy(self, largest: str) -> str:
        """The setting to change if ``largest`` is the largest part of the memory."""
        if largest == "activations":
            if not self.params.gradient_checkpointing:
                return f"set {self.place}.gradient_checkpointing: true"
            return f"lower {self.place}.micro_batch_tokens, row_tokens or max_length"
        if _shards_base(self.params):
            return f"raise {self.place}.launcher.processes, or set offload: true there"
        if self.params.lora is not None:
            quantised = self.params.lora.quantize == "4bit"
            return "use a larger GPU" if quantised else f"set {self.place}.lora.quantize to 4bit"
        if self.params.launcher.kind == "deepspeed":
            zero_3 = "" if self.params.launcher.zero_stage == 3 else "zero_stage: 3 or "
            return f"raise {self.place}.launcher.processes, set {zero_3}offload: true there, or add lora"
        return f"set {self.place}.launcher to deepspeed over several GPUs, or add {self.place}.lora"


def trained_model(work: Training, shape: f.Shape, machine: Hardware) -> TrainingEstimate:
    """The requirements of one training run."""
    params, launcher = work.params, work.params.launcher
    on_gpu = params.device == "cuda"
    processes = launcher.processes * launcher.nodes
    states, held = model_states(params, shape)
    tokens = largest_batch(work)
    width = work.longest if params.attention == "eager" else 0
    activations = f.training_activations(
        shape, tokens, checkpointing=params.gradient_checkpointing, predicted=predicted_tokens(work, tokens),
        width=width, bytes_each=residual_bytes(params),
    )  # fmt: skip
    if params.lora is not None and params.lora.dropout > 0:
        each = f.adapter_activations(shape, tokens, params.lora.targets, bytes_each=residual_bytes(params))
        activations += each * (1 if params.gradient_checkpointing else shape.layers)
    other = PROCESS_GPU
    if launcher.kind == "deepspeed":
        other += ZERO2_BUCKETS if launcher.zero_stage == 2 else min(ZERO3_LIVE, 2.0 * shape.parameters)
    if isinstance(params, RLParams) and params.critic is not None and not params.critic.shared:
        states = f.States(
            states.weights + frozen_weights(params, shape), states.gradients, states.optimiser, states.host
        )
    host = launcher.processes * (PROCESS_HOST if on_gpu else PROCESS_CPU)
    host += loading_bytes(params, shape) + states.host / launcher.nodes
    if not on_gpu:
        host += launcher.processes * (states.total + activations)
    return TrainingEstimate(
        place=work.place,
        params=params,
        gpus=launcher.processes if on_gpu else 0,
        states=states,
        activations=activations,
        other=other,
        host=host,
        output=output_bytes(params, shape),
        checkpoints=checkpoint_bytes(work, shape),
        seconds=training_seconds(work, shape, machine) / processes,
        held_dtype=held,
        opponent=opponent_memory(work, shape),
        problems=tuple(_problems(work, shape, machine)),
    )


def model_states(params: FinetuneParams | RLParams, shape: f.Shape) -> tuple[f.States, str]:
    """Weights, gradients and optimiser state of one process, and the precision of the embeddings."""
    launcher = params.launcher
    moments = optimiser_bytes(params)
    processes, largest = launcher.processes * launcher.nodes, max(shape.embedding, shape.layer_matrices)
    if params.lora is not None:
        adapters = f.adapter_parameters(shape, params.lora.rank, params.lora.targets)
        base = frozen_weights(params, shape)
        if _shards_base(params):
            states = f.zero3_adapter_states(
                base, adapters, processes, largest_layer=largest * f.BYTES[params.dtype], moments=moments,
                offload=launcher.offload,
            )  # fmt: skip
            return states, params.dtype
        return f.adapter_states(base, adapters, moments=moments), params.dtype
    if launcher.kind == "deepspeed" and params.dtype != "float32":
        states = f.zero_states(
            shape.parameters, processes, launcher.zero_stage, moments=moments, largest_layer=largest,
            offload=launcher.offload,
        )  # fmt: skip
        return states, params.dtype
    several = processes > 1
    autocast = params.dtype != "float32"
    return f.full_states(shape.parameters, moments=moments, autocast=autocast, buckets=several), "float32"


def _shards_base(params: FinetuneParams | RLParams) -> bool:
    """Whether ZeRO-3 partitions the frozen base of adapters."""
    return params.launcher.kind == "deepspeed" and params.launcher.zero_stage == 3 and params.lora is not None


def optimiser_bytes(params: FinetuneParams | RLParams) -> int:
    """Bytes of optimiser state per trained parameter."""
    return f.RMSPROP if isinstance(params, PairParams) and params.optimizer == "rmsprop" else f.ADAM


def residual_bytes(params: FinetuneParams | RLParams) -> int:
    """Bytes per element of the hidden states. Autocast keeps the precision of the embeddings: float32 if all weights
    are, and in fine-tuning on quantised weights (``peft.prepare_model_for_kbit_training``)."""
    quantised = params.lora is not None and params.lora.quantize != "none" and isinstance(params, FinetuneParams)
    half = params.lora is not None or params.launcher.kind == "deepspeed"
    return f.BYTES[params.dtype] if half and not quantised else 4


def frozen_weights(params: FinetuneParams | RLParams, shape: f.Shape) -> float:
    """Bytes of a copy of the model without gradients, quantised according to the params."""
    if params.lora is None:
        return f.frozen_bytes(shape, "float32")
    return f.frozen_bytes(shape, params.dtype, params.lora.quantize)


def largest_batch(work: Training) -> int:
    """Tokens in a process's largest pass: ``micro_batch_tokens``, or one wider row (``training/packing.py``), but at
    most those of a step's examples."""
    params = work.params
    pair = 2 if isinstance(params, PairParams) else 1  # a pair shares one row
    if _with_xtuner(params):
        return work.longest
    most = work.tokens
    if isinstance(params, FinetuneParams):
        most = min(most, params.batch_size * pair * work.longest)
    return max(min(params.micro_batch_tokens, most), min(params.row_tokens, most), pair * work.longest)


def _with_xtuner(params: FinetuneParams | RLParams) -> bool:
    return isinstance(params, FinetuneParams) and params.backend == "xtuner"


def predicted_tokens(work: Training, tokens: int) -> int:
    """Tokens of a micro-batch with logits: all of them (each may be trained on); in RL one per prompt."""
    if isinstance(work.params, RLParams):
        return max(1, tokens // 16)
    return tokens


def loading_bytes(params: FinetuneParams | RLParams, shape: f.Shape) -> float:
    """Bytes of host memory while all processes load the model (``loading.placement``). With ZeRO-3 each reads the whole
    checkpoint; otherwise each reads one tensor at a time to its GPU. XTuner reads the model to host memory, in float32.
    At the end one process holds the model that it writes."""
    launcher: LauncherConfig = params.launcher
    written = float(shape.parameters * f.BYTES[params.dtype])
    if launcher.kind == "deepspeed" and launcher.zero_stage == 3:
        each = float(shape.parameters * max(shape.stored, f.BYTES[params.dtype]))
    elif params.device == "cuda" and not _with_xtuner(params):
        each = 4.0 * max(shape.embedding, shape.layer_matrices)
    else:
        each = 4.0 * shape.parameters
    return max(each * launcher.processes, written)


def opponent_memory(work: Training, shape: f.Shape) -> tuple[float, float]:
    """Bytes of weights and activations on each GPU while SPIN's opponent scores the pairs before training: a full copy
    per process, in the training precision (``opponent.py``)."""
    params = work.params
    if not work.scored:
        return 0.0, 0.0
    if params.launcher.kind == "deepspeed" and params.lora is None:
        weights = f.frozen_bytes(shape, params.dtype)
    else:
        weights = frozen_weights(params, shape)
    tokens = largest_batch(work)
    return weights, f.inference_activations(shape, tokens, logits=tokens, bytes_each=4)


def output_bytes(params: FinetuneParams | RLParams, shape: f.Shape) -> float:
    """Bytes of the published model in the training precision; with LoRA, of the adapter alone, in float32."""
    if params.lora is not None:
        return 4.0 * f.adapter_parameters(shape, params.lora.rank, params.lora.targets)
    return float(shape.parameters * f.BYTES[params.dtype])


def merged_bytes(runs: Iterable[Training], shape: f.Shape) -> float:
    """Bytes of the merged copies of rows trained with LoRA, created where such rows are read (``merging.py``); only the
    newest are kept, here assumed to be the largest."""
    sizes = [
        float(shape.parameters * f.BYTES[run.params.dtype])
        for run in runs
        if run.params.lora is not None and not run.untrained
    ]
    return sum(sorted(sizes)[-KEPT:])


def checkpoint_bytes(work: Training, shape: f.Shape) -> float:
    """Bytes of the kept checkpoints and of the one being written: master weights and moments of what is trained and,
    with ZeRO, its 16-bit weights, which in stage 2 both Trainer (not XTuner) and DeepSpeed save."""
    params, launcher = work.params, work.params.launcher
    moments = optimiser_bytes(params)
    if params.lora is not None:
        each = f.adapter_parameters(shape, params.lora.rank, params.lora.targets) * (4 + moments)
    else:
        each = shape.parameters * (4 + moments)
        if launcher.kind == "deepspeed":
            twice = launcher.zero_stage == 2 and not _with_xtuner(params)
            each += shape.parameters * (4 if twice else 2)
    # Besides every save_steps, checkpoints are written periodically and when a run is stopped (training/stopping.py).
    return float(min(params.save_total_limit + 1, max(0, work.steps - 1)) * each)


def training_seconds(work: Training, shape: f.Shape, machine: Hardware) -> float:
    """Seconds on one GPU: of its operations, or of launching kernels if that takes longer."""
    params = work.params
    rate = machine.gpu.operations * COMPUTE * RATE[_precision(params)]
    operations = f.training_operations(
        shape, work.tokens, work.longest, checkpointing=params.gradient_checkpointing, frozen=params.lora is not None
    )
    computing = (operations + f.forward_operations(shape, work.scored, work.longest)) / rate
    launching = work.tokens / max(1, largest_batch(work)) * shape.layers * LAUNCH_LAYER
    launching *= (2 if params.lora is not None else 1) * (4 / 3 if params.gradient_checkpointing else 1)
    return max(computing, launching)


def _precision(params: FinetuneParams | RLParams) -> str:
    if params.dtype == "float32" and params.tf32:
        return "tf32"
    return params.dtype


def _problems(work: Training, shape: f.Shape, machine: Hardware) -> list[str]:
    params, launcher, found = work.params, work.params.launcher, []
    place = f"{work.place}.launcher"
    if shape.learned_positions and work.longest > shape.positions:
        found.append(
            f"{work.place}.max_length is {work.longest}, but the model has {shape.positions} positions; lower it."
        )
    if launcher.nodes > machine.nodes:
        machines = "1 machine" if machine.nodes == 1 else f"{machine.nodes} machines"
        found.append(
            f"{place}.nodes is {launcher.nodes}, but the plan is for {machines}; set NODES={launcher.nodes}, or lower "
            "it."
        )
    if params.device == "cuda" and launcher.processes > machine.count:
        gpus = "1 GPU" if machine.count == 1 else f"{machine.count} GPUs"
        found.append(f"{place}.processes is {launcher.processes}, but a machine has only {gpus}; lower it.")
    return found
