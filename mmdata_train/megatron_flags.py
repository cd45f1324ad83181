"""A Megatron command line as our configuration: one table for single options, a few rules for those that act
together.

`--a-b` and `--a_b` are the same; switches may be followed by true or false. Megatron's defaults are kept where they
change the result (LayerNorm, learned positions, GELU, biases, tied embeddings, no sharding of the optimizer); the one
exception is dropout, 0 here and 0.1 there, which is said in a notice. Unknown options are an error that names the
nearest one.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmdata_train.errors import ConfigError
from mmdata_train.megatron_table import Option, options

DECAY_STYLES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "WSD": "wsd"}
SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
ONLY_VALUE: dict[str, tuple[Any, str]] = {
    "optimizer": ("adam", "AdamW is the only optimizer"),
    "rotary-percent": (1.0, "rotary positions turn whole heads"),
    "expert-model-parallel-size": (1, "mixtures of experts are not offered"),
    "lr-warmup-init": (0.0, "warm-up starts from the first step's share"),
    "lr-wsd-decay-style": ("linear", "WSD decays linearly"),
    "weight-decay-incr-style": ("constant", "weight decay is constant"),
    "main-params-dtype": ("fp32", "weights are kept in fp32"),
    "main-grads-dtype": ("fp32", "gradients are reduced in fp32"),
    "exp-avg-dtype": ("fp32", "moments are kept in fp32"),
    "exp-avg-sq-dtype": ("fp32", "moments are kept in fp32"),
}


@dataclass(frozen=True, slots=True)
class MegatronRun:
    """A translated command line. mapping: for `config_io.build(TrainConfig, ...)`. notices: one line each, for the
    user.

    load: what --load or --pretrained-checkpoint names. finetune: weights only, from step 0.
    """

    mapping: dict[str, Any]
    notices: tuple[str, ...]
    load: Path | None
    finetune: bool
    must_load: bool
    mock_data: bool


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Option name -> value. Raises ConfigError on unknown options, missing or wrong values, and refused options."""
    known, values, position = options(), {}, 0
    while position < len(arguments):
        word, position = arguments[position], position + 1
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} does not belong to an option; options start with --")
        name, equals, attached = word[2:].partition("=")
        name = name.replace("_", "-")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"--{name} is unknown" + (f"; did you mean --{close[0]}?" if close else ""))
        given = [attached] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            if known[name].kind != "l" and (given or not _takes(known[name], arguments[position])):
                break
            given.append(arguments[position])
            position += 1
        values[name] = _value(name, known[name], given)
    for name, value in values.items():
        if known[name].action == "!" and value is not False:
            raise ConfigError(f"--{name} is not offered: {known[name].detail}")
    return values


def _takes(option: Option, word: str) -> bool:
    return option.kind != "b" or word.lower() in ("true", "false")


def _value(name: str, option: Option, given: list[str]) -> Any:
    if option.kind == "b":
        return not given or given[0].lower() == "true"
    if not given:
        raise ConfigError(f"--{name} needs a value")
    if option.kind == "l":
        return given
    try:
        return {"i": int, "f": float, "s": str}[option.kind](given[0])
    except ValueError:
        wanted = "a whole number" if option.kind == "i" else "a number"
        raise ConfigError(f"--{name} {given[0]!r} is not {wanted}") from None


def translate(arguments: Sequence[str]) -> MegatronRun:
    """The whole command line as a configuration. Raises ConfigError."""
    values, table = parse(arguments), options()
    run: dict[str, Any] = {}
    for name, value in values.items():
        if table[name].action == "=":
            _set(run, table[name].detail, value)
        if name in ONLY_VALUE and value != ONLY_VALUE[name][0]:
            wanted, why = ONLY_VALUE[name]
            raise ConfigError(f"--{name} {value} is not offered: {why}; leave it out or use {wanted}")
    notices = [f"--{name} has no effect: {table[name].detail}" for name in values if table[name].action == "~"]
    for rule in (_model, _positions, _parallel, _stages, _precision, _training, _data):
        rule(values, run)
    if "hidden-dropout" not in values and "attention-dropout" not in values:
        notices.append("dropout is 0; Megatron's default is 0.1 (--hidden-dropout 0.1 --attention-dropout 0.1)")
    load = values.get("load") or values.get("pretrained-checkpoint")
    return MegatronRun(
        mapping=run,
        notices=tuple(notices),
        load=Path(load) if load else None,
        finetune=bool(values.get("finetune") or values.get("no-load-optim") or "pretrained-checkpoint" in values),
        must_load=bool(values.get("exit-on-missing-checkpoint")),
        mock_data=bool(values.get("mock-data")),
    )


def _set(run: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    place = run
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value


def _model(values: dict[str, Any], run: dict[str, Any]) -> None:
    model = run.setdefault("model", {})
    biases = not values.get("disable-bias-linear")
    norms = {"LayerNorm": "layer", "RMSNorm": "rms"}
    norm = values.get("normalization", "LayerNorm")
    if norm not in norms:
        raise ConfigError(f"--normalization {norm} is not offered; choose from {', '.join(norms)}")
    activation = "silu" if values.get("swiglu") else "relu2" if values.get("squared-relu") else "gelu"
    if values.get("openai-gelu"):
        activation = "gelu_tanh"
    model.update(
        norm=norms[norm],
        activation=activation,
        gated=bool(values.get("swiglu")),
        qkv_bias=biases or bool(values.get("add-qkv-bias")),
        output_bias=biases,
        mlp_bias=biases,
        tie_embeddings=not values.get("untie-embeddings-and-output-weights"),
        family="llama" if norm == "RMSNorm" else "gpt2",
    )
    # Megatron's default width is 4 x hidden also for a gated MLP.
    model.setdefault("intermediate_size", 4 * model.get("hidden_size", 0))
    if values.get("group-query-attention"):
        model["num_kv_heads"] = values.get("num-query-groups", 1)
    # Megatron pads to a multiple of this times tp; padding here does not depend on the layout.
    tensor = values.get("tensor-model-parallel-size", 1)
    model["vocab_multiple"] = values.get("make-vocab-size-divisible-by", 128) * tensor
    window = values.get("window-size")
    if window is not None:
        left, _, right = "".join(window).strip("()").partition(",")
        if right.strip() not in ("", "0"):
            raise ConfigError(f"--window-size {' '.join(window)} looks ahead; only what came before can be seen")
        model["sliding_window"] = int(left) + 1 if int(left) >= 0 else None


def _positions(values: dict[str, Any], run: dict[str, Any]) -> None:
    kind = values.get("position-embedding-type", "learned_absolute")
    if values.get("use-rotary-position-embeddings"):
        kind = "rope"
    kinds = {"learned_absolute": "learned", "rope": "rope"}
    if kind not in kinds:
        raise ConfigError(f"--position-embedding-type {kind} is not offered; choose from {', '.join(kinds)}")
    run["model"]["positions"] = kinds[kind]
    if "rotary-seq-len-interpolation-factor" in values:
        run["model"]["rope_scaling"] = {"kind": "linear", "factor": values["rotary-seq-len-interpolation-factor"]}
    if values.get("use-rope-scaling"):
        run["model"]["rope_scaling"] = {"kind": "llama3", "factor": values.get("rope-scaling-factor", 8.0)}


def _parallel(values: dict[str, Any], run: dict[str, Any]) -> None:
    parallel = run.setdefault("parallel", {})
    tensor = values.get("tensor-model-parallel-size", 1)
    # Megatron too switches it off without a tensor axis.
    parallel["sequence_parallel"] = bool(values.get("sequence-parallel")) and tensor > 1
    stage = 1 if values.get("use-distributed-optimizer") else 0
    if values.get("use-megatron-fsdp") or values.get("use-torch-fsdp2"):
        stage = 2 if values.get("torch-fsdp2-no-reshard-after-forward") else 3
        strategy = values.get("data-parallel-sharding-strategy")
        if strategy is not None:
            if strategy not in SHARDING:
                raise ConfigError(f"--data-parallel-sharding-strategy {strategy}: choose from {', '.join(SHARDING)}")
            stage = SHARDING[strategy]
    parallel["zero_stage"] = stage


def _stages(values: dict[str, Any], run: dict[str, Any]) -> None:
    parallel, ranks = run["parallel"], values.get("pipeline-model-parallel-size", 1)
    layers = values.get("num-layers", 0)
    virtual = values.get("num-virtual-stages-per-pipeline-rank")
    per_stage = values.get("num-layers-per-virtual-pipeline-stage")
    if per_stage is not None:
        if layers % (ranks * per_stage):
            raise ConfigError(
                f"--num-layers-per-virtual-pipeline-stage {per_stage} x --pipeline-model-parallel-size {ranks} does not"
                f" divide --num-layers {layers}"
            )
        virtual = layers // (ranks * per_stage)
    if virtual is not None and virtual > 1:
        parallel.update(virtual_stages=virtual, schedule="interleaved")
    first, last = (values.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    if first is None and last is None:
        return
    ends = [count for count in (first, last) if count is not None]
    middle, rest = ranks - len(ends), layers - sum(ends)
    if (virtual or 1) > 1 or middle < 1 or rest % middle:
        raise ConfigError(
            f"{rest} layers do not split evenly over the {middle} other stages; use --set parallel.stage_layers=[...]"
        )
    counts = [first] if first is not None else []
    counts += [rest // middle] * middle + ([last] if last is not None else [])
    parallel["stage_layers"] = counts


def _precision(values: dict[str, Any], run: dict[str, Any]) -> None:
    training = run.setdefault("train", {})
    if values.get("bf16") and values.get("fp16"):
        raise ConfigError("--bf16 and --fp16 are both given; keep one")
    training["precision"] = "bf16" if values.get("bf16") else "fp16" if values.get("fp16") else "fp32"
    if "loss-scale" in values:
        fixed = values["loss-scale"]
        training.update(initial_loss_scale=fixed, min_loss_scale=fixed, loss_scale_window=2**62)
    mode = "selective" if values.get("recompute-activations") else "none"
    mode = values.get("recompute-granularity", mode)
    if values.get("activation-checkpointing") or values.get("checkpoint-activations"):
        mode = "full"
    training["activation_checkpointing"] = mode


def _training(values: dict[str, Any], run: dict[str, Any]) -> None:
    training = run["train"]
    style = values.get("lr-decay-style", "linear")
    if style not in DECAY_STYLES:
        raise ConfigError(f"--lr-decay-style {style} is not offered; choose from {', '.join(DECAY_STYLES)}")
    training["lr_schedule"] = DECAY_STYLES[style]
    training.setdefault("beta2", 0.999)
    # Megatron's default global batch is one micro-batch on each data rank; without one the micro-batch stands for it.
    training.setdefault("global_batch_size", training.get("micro_batch_size", 1))
    if "train-samples" in values:
        training["steps"] = values["train-samples"] // training["global_batch_size"]
    steps = training.get("steps")
    if values.get("lr-decay-iters", steps) != steps:
        raise ConfigError(
            f"--lr-decay-iters {values['lr-decay-iters']} differs from --train-iters {steps}: the rate decays over the"
            " whole run; leave it out"
        )
    if "lr-wsd-decay-iters" in values and steps:
        training["decay_ratio"] = values["lr-wsd-decay-iters"] / steps
    if "rampup-batch-size" in values:
        if len(values["rampup-batch-size"]) != 3:
            raise ConfigError("--rampup-batch-size needs 3 numbers: start, increment, samples")
        start, increment, samples = map(int, values["rampup-batch-size"])
        training["batch_rampup"] = {"start": start, "increment": increment, "samples": samples}
    if "seed" in values:
        training["seed"] = values["seed"]
        _set(run, "data.seed", values["seed"])


def _data(values: dict[str, Any], run: dict[str, Any]) -> None:
    loaders = {"single": "single", "cyclic": "cyclic"}
    kind = values.get("dataloader-type")
    if kind is not None:
        if kind not in loaders:
            raise ConfigError(f"--dataloader-type {kind} is not offered; choose from {', '.join(loaders)}")
        _set(run, "data.order", loaders[kind])
    if "valid-data-path" in values:
        paths = [word for word in values["valid-data-path"] if not word.replace(".", "", 1).isdigit()]
        _set(run, "data.valid", {Path(path).name: path for path in paths})
    if "vocab-file" in values:
        _set(run, "tokenizer", values["vocab-file"])
    if "tensorboard-dir" in values:
        _set(run, "output.tensorboard", True)
    if values.get("full-validation"):
        _set(run, "train.eval_batches", None)
