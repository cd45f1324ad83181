"""Megatron's command-line flags and what becomes of each, as data: one row a flag, `name type default fate`.

Type: i whole number, f number, s text, b switch, l list, or the choices `a|b`. Default is Megatron's, `-` where it has
none. Fate: `=field` the value is the field's; `@field how` a rule of `megatron_rules` or `megatron_shape` works it out
together with other flags; `>flag` another name of that flag; `~reason` accepted with this notice, changes no result;
`!reason` refused; `?reason` refused unless it is the default. Names are written with dashes; underscores are the same.
`data-parallel-size`, `lora-*` and `activation-checkpointing` are not Megatron's: the engine's own, in its spelling.

Defaults are those of Megatron-LM's `training/arguments.py` (2025 and 2026). A field takes Megatron's default when its
flag is absent, save for a few rules, which say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["map", "notice", "refuse"]
_KINDS: dict[str, Kind] = {"=": "map", "@": "map", ">": "map", "~": "notice", "!": "refuse", "?": "refuse"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One row. target: the field a mapped flag sets. note: how, or why not. fate: the row's sign."""

    name: str
    type: str
    default: str | None
    fate: str
    target: str
    note: str
    section: str

    @property
    def kind(self) -> Kind:
        """What becomes of the flag."""
        return _KINDS[self.fate]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it takes; empty where it takes any."""
        return tuple(self.type.split("|")) if "|" in self.type else ()


_MOE = "mixtures of experts are not offered; use a dense model"
_FP8 = "fp8 is not offered here; use --bf16"
_KERNEL = "kernels are chosen by PyTorch"
_DDP = "gradients are reduced layer by layer as they are ready"
_LOGGED = "loss, gradient norm, rate, tokens/s, TFLOP/s, MFU and memory are logged at every --log-interval"
_WANDB = "runs of --wandb-project are named after the --save folder, where wandb's own files go; WANDB_ENTITY is heeded"
_PROFILE = "no profile is taken by this command; wrap mmdata_train.finetune with torch.profiler"
_FORMAT = (
    "checkpoints are this engine's own, readable in any layout: torch.distributed.checkpoint's index over plain bytes,"
    " which its FileSystemReader cannot read; `mmdata-train export` makes a Hugging Face folder"
)
_RECOMPUTE = "every layer is recomputed alike; results are the same, memory and time may differ"

_TABLE = f"""
# Model
num-layers i - =model.num_layers
hidden-size i - =model.hidden_size
num-attention-heads i - =model.num_heads
ffn-hidden-size i - @model.intermediate_size 4 x hidden size; with --swiglu 8/3 x, rounded down to 64 (Megatron's rule)
kv-channels i - @model.head_dim hidden size / heads, which must divide
num-query-groups i 1 @model.num_kv_heads needs --group-query-attention; Megatron ignores it without
group-query-attention b false @model.num_kv_heads heads share keys and values in --num-query-groups groups
max-position-embeddings i - @model.max_positions at least --seq-length
normalization LayerNorm|RMSNorm LayerNorm @model.norm
norm-epsilon f 1e-5 =model.norm_eps
layernorm-epsilon f - >norm-epsilon
swiglu b false @model.gated
squared-relu b false @model.activation
openai-gelu b false @model.activation tanh form of GELU
quick-geglu b false !this activation is not offered; use --swiglu
glu-linear-offset f 0.0 ?gates have no offset
no-bias-gelu-fusion b false @model.activation erf form of GELU; with biases Megatron's fused kernel is the tanh form
disable-bias-linear b false @model.mlp_bias
add-bias-linear b true @model.mlp_bias
add-qkv-bias b false @model.qkv_bias
qk-layernorm b false =model.qk_norm
position-embedding-type learned_absolute|rope|none|yarn|mrope|relative learned_absolute @model.positions
use-rotary-position-embeddings b false @model.positions old name of --position-embedding-type rope
rotary-base f 10000 =model.rope_theta
rotary-percent f 1.0 ?rotary positions turn whole heads
rotary-interleaved b false !pairs are the two halves of a head, as in Hugging Face folders
rotary-seq-len-interpolation-factor f - @model.rope_scaling linear scaling
use-rope-scaling b false @model.rope_scaling Llama 3.1's scaling
rope-scaling-factor f 8.0 @model.rope_scaling
no-position-embedding b false ~positions are as --position-embedding-type says
no-rope-freq s - !every layer has the same positions
untie-embeddings-and-output-weights b false @model.tie_embeddings
make-vocab-size-divisible-by i 128 @model.vocab_multiple the least multiple of it that the tensor degree divides
vocab-size i - @model.vocab_size from the tokenizer or the shard's manifest; with NullTokenizer one more, its end token
padded-vocab-size i - @model.vocab_multiple rows of the embedding
attention-dropout f 0.1 @model.attention_dropout 0 when absent, with a notice
hidden-dropout f 0.1 @model.dropout 0 when absent, with a notice
init-method-std f 0.02 =model.init_std
init-method-xavier-uniform b false !weights are drawn from a normal distribution; use --init-method-std
apply-layernorm-1p b false !norms centred at zero are not offered; add 1 to their weights and leave it out
apply-residual-connection-post-layernorm b false !residuals are taken before the norm
window-size s - @model.sliding_window LEFT,0: a position sees itself and LEFT before it
window-attn-skip-freq s - !every layer has the same window
softmax-type s vanilla ?attention is the plain softmax
attention-softmax-in-fp32 b false ~attention kernels accumulate in fp32
apply-query-key-layer-scaling b false ~it cancels out but for rounding
multi-latent-attention b false !latent attention is not offered; use a model with grouped queries
num-experts i - !{_MOE}
expert-model-parallel-size i 1 ?{_MOE}
expert-tensor-parallel-size i - !{_MOE}
mtp-num-layers i - !multi-token prediction is not offered; leave it out
hybrid-attention-ratio f 0.0 ?state-space layers are not offered
# Parallelism
tensor-model-parallel-size i 1 =parallel.tensor
pipeline-model-parallel-size i 1 =parallel.pipeline
data-parallel-size i - =parallel.data
context-parallel-size i 1 =parallel.context
sequence-parallel b false @parallel.sequence_parallel off without a tensor axis, as in Megatron
num-layers-per-virtual-pipeline-stage i - @parallel.virtual_stages
num-virtual-stages-per-pipeline-rank i - @parallel.virtual_stages
decoder-first-pipeline-num-layers i - @parallel.stage_layers
decoder-last-pipeline-num-layers i - @parallel.stage_layers
account-for-embedding-in-pipeline-split b false @parallel.stage_layers the embedding counts as a layer
account-for-loss-in-pipeline-split b false @parallel.stage_layers the output head counts as a layer
pipeline-model-parallel-layout s - !give --decoder-first- and --decoder-last-pipeline-num-layers instead
microbatch-group-size-per-virtual-pipeline-stage i - ~the schedule decides
use-distributed-optimizer b false @parallel.zero_stage stage 1; without it stage 0
use-megatron-fsdp b false @parallel.zero_stage
use-torch-fsdp2 b false @parallel.zero_stage stage 3
torch-fsdp2-no-reshard-after-forward b false @parallel.zero_stage stage 2
data-parallel-sharding-strategy no_shard|optim|optim_grads|optim_grads_params no_shard @parallel.zero_stage 0 to 3
num-distributed-optimizer-instances i 1 @parallel.shard_size data ranks / instances
outer-dp-sharding-strategy s no_shard ?replicas of a sharding group are whole
overlap-grad-reduce b false @parallel.overlap on unless given as false
overlap-param-gather b false @parallel.overlap on unless given as false
overlap-param-gather-with-optimizer-step b false ~parameters are gathered as they are needed
tp-comm-overlap b false ~tensor-parallel collectives are not overlapped
no-overlap-p2p-communication b false ~the pipeline schedule decides
overlap-p2p-communication-warmup-flush b false ~the pipeline schedule decides
ddp-bucket-size i - ~{_DDP}
ddp-num-buckets i - ~{_DDP}
ddp-average-in-collective b false ~gradients are summed; the loss is divided by the global number of counted tokens
no-align-grad-reduce b false ~{_DDP}
align-grad-reduce b true ~{_DDP}
no-align-param-gather b false ~parameters are gathered as they are needed
no-scatter-gather-tensors-in-pipeline b false ~the pipeline schedule decides
defer-embedding-wgrad-compute b false ~the pipeline schedule decides
use-ring-exchange-p2p b false ~the pipeline schedule decides
use-nccl-ub b false ~NCCL is used as PyTorch sets it up
nccl-communicator-config-path s - ~NCCL is used as PyTorch sets it up
use-sharp b false ~NCCL is used as PyTorch sets it up
distributed-backend nccl|gloo nccl ~NCCL on GPUs, gloo on CPUs
distributed-timeout-minutes f 10 =parallel.timeout_minutes
local-rank i - ~the launcher's environment names the rank
use-tp-pp-dp-mapping b false !ranks are ordered tensor, data, pipeline
fake-process-group b false !a dry run is not offered by this command
# Precision
bf16 b false @train.precision fp32 without --bf16 and --fp16
fp16 b false @train.precision fp32 without --bf16 and --fp16
loss-scale f - @train.initial_loss_scale a scale that never moves
initial-loss-scale f 4294967296 @train.initial_loss_scale 65536 when absent, with a notice
min-loss-scale f 1.0 @train.min_loss_scale
loss-scale-window f 1000 @train.loss_scale_window
hysteresis i 2 =train.loss_scale_hysteresis
accumulate-allreduce-grads-in-fp32 b false ~gradients are added up and reduced in fp32 always
grad-reduce-in-bf16 b false ~gradients are reduced in fp32, which is more exact
use-precision-aware-optimizer b false ~weights, gradients and moments are kept in fp32
main-params-dtype s fp32 ?weights are kept in fp32
main-grads-dtype s fp32 ?gradients are reduced in fp32
exp-avg-dtype s fp32 ?moments are kept in fp32
exp-avg-sq-dtype s fp32 ?moments are kept in fp32
fp16-lm-cross-entropy b false ~the loss is computed in fp32, which is more exact
fp8-format s - !{_FP8}
fp8-recipe s - !{_FP8}
fp8-param-gather b false !{_FP8}
check-for-nan-in-loss-and-grad b true ~a non-finite step is skipped, counted and its parameter named
no-check-for-nan-in-loss-and-grad b false ~the check costs next to nothing and stays on
check-for-spiky-loss b false ~a loss that stands out is logged with its documents always
# Recomputation and offloading
activation-checkpointing b false @train.activation_checkpointing full recomputation
checkpoint-activations b false >activation-checkpointing
recompute-activations b false @train.activation_checkpointing selective
recompute-granularity full|selective - @train.activation_checkpointing
recompute-method uniform|block - ~{_RECOMPUTE}
recompute-num-layers i - ~{_RECOMPUTE}
recompute-modules l core_attn ~selective recomputation keeps the results of matrix products and attention
distribute-saved-activations b false ~use --sequence-parallel to split what is kept
optimizer-cpu-offload b false =parallel.cpu_offload
optimizer-offload-fraction f 1.0 ?all of the optimizer is offloaded or nothing
cpu-offloading b false !activations are not offloaded; use --activation-checkpointing
# Optimizer and schedule
optimizer s adam ?AdamW is the only optimizer
no-decoupled-weight-decay b false !weight decay is decoupled (AdamW)
lr f - =train.lr
min-lr f 0.0 =train.min_lr
decoupled-lr f - !all weights have one rate; leave it out
decoupled-min-lr f - !all weights have one rate; leave it out
lr-decay-style constant|linear|cosine|inverse-square-root|WSD linear @train.lr_schedule
lr-decay-iters i - @train.decay_steps from there on the rate is --min-lr; the whole run when absent
lr-decay-samples i - @train.decay_steps rounded up to whole steps
lr-warmup-iters i 0 @train.warmup_steps step k of N has k/N of the rate (Megatron: (k-1)/N, so 0 at the first)
lr-warmup-samples i 0 @train.warmup_steps rounded up to whole steps
lr-warmup-fraction f - =train.warmup_ratio
lr-warmup-init f 0.0 ?warm-up starts from the first step's share of --lr
lr-wsd-decay-style s exponential @train.lr_schedule linear only; a notice when absent
lr-wsd-decay-iters i - @train.decay_ratio
lr-wsd-decay-samples i - !use --lr-wsd-decay-iters
weight-decay f 0.01 =train.weight_decay
start-weight-decay f - !weight decay is constant; use --weight-decay
end-weight-decay f - !weight decay is constant; use --weight-decay
weight-decay-incr-style s constant ?weight decay is constant
clip-grad f 1.0 =train.clip_grad
adam-beta1 f 0.9 =train.beta1
adam-beta2 f 0.999 =train.beta2
adam-eps f 1e-8 =train.eps
override-opt-param-scheduler b false ~the schedule always follows this run's flags
use-checkpoint-opt-param-scheduler b false !the schedule follows this run's flags; give the former ones
calculate-per-token-loss b false ~the loss is always the mean over the counted tokens of the global batch
# Length and batches
micro-batch-size i - @train.micro_batch_size
global-batch-size i - @train.global_batch_size one micro-batch on each data rank when absent
rampup-batch-size l - @train.batch_rampup
decrease-batch-size-if-needed b false !choose a --global-batch-size that the data ranks divide
train-iters i - @train.steps one epoch when absent
train-samples i - @train.steps whole global batches
exit-interval i - !use --exit-duration-in-mins, or --train-iters
exit-duration-in-mins f - =train.exit_after_minutes
exit-signal-handler b false ~SIGTERM always saves and stops
iterations-to-skip l - !a step is skipped only when its gradients are not finite
seed i 1234 @train.seed of weights, dropout and shuffles
deterministic-mode b false =train.deterministic
# Data
seq-length i - @data.seq_length
encoder-seq-length i - >seq-length
data-path l - @data.train prefixes, or weight and prefix in turn
train-data-path l - @data.train
valid-data-path l - @data.valid each prefix a set with its own loss
test-data-path l - ~test sets are not measured during training
multiple-validation-sets b false ~each of --valid-data-path always has its own loss
split s - =data.split
mock-data b false @data.train counting tokens, written into the --save folder
data-cache-path s - =data.cache_dir
dataloader-type single|cyclic|external single @data.order
num-workers i 2 =data.loading.workers
no-mmap-bin-files b false ~shards are always mapped
no-create-attention-mask-in-dataloader b false ~masks are made on the device
reset-position-ids b false @data.reset_positions
reset-attention-mask b false @data.reset_attention
eod-mask-loss b false @data.reset_attention with --reset-attention-mask, where it is always so
sft b false !convert chat data with `mmdata convert`: the shard then says which tokens count
sft-tokenizer-prompt-format s - !choose the template with `mmdata convert --chat-template`
fim-data b false !infilling samples are not offered
tokenizer-type s - @tokenizer
tokenizer-model s - @tokenizer
vocab-file s - @tokenizer
merge-file s - @tokenizer
tiktoken-pattern s - ~the ranks' name says it: --tokenizer-model NAME:FILE
tiktoken-num-special-tokens i 1000 ~the ranks' name says it: --tokenizer-model NAME:FILE
tiktoken-special-tokens l - ~the ranks' name says it: --tokenizer-model NAME:FILE
tokenizer-hf-use-fast b false ~tokenizer files are read directly
trust-remote-code b false ~no code of a model folder is run
vocab-extra-ids i 0 ?tokens cannot be added here; add them to the tokenizer
data-args-path s - !give the blend with --data-path
per-split-data-args-path s - !give the blends with --train-data-path and --valid-data-path
num-dataset-builder-threads i 1 ~indices are built once and cached
data-impl s mmap ?Megatron itself reads mmap shards only
# Checkpoints
save s - @output.dir
load s - @model a Hugging Face folder, or a folder this engine saved
pretrained-checkpoint s - @model as --load of a Hugging Face folder
finetune b false @start_from weights only, from step 0; a Hugging Face folder always starts so
no-load-optim b false @start_from as --finetune, so also from step 0 (Megatron goes on counting)
no-load-rng b false ~random state follows from the seed and the step
no-save-optim b false !a checkpoint holds the optimizer, so that the run can go on
no-save-rng b false ~random state follows from the seed and the step
use-checkpoint-args b false @model the shape comes from the Hugging Face folder
exit-on-missing-checkpoint b false @model
ckpt-step i - !point --load at the checkpoint's own folder (step_00000100)
save-interval i - =output.save_every
async-save b false =output.async_save
most-recent-k i -1 @output.keep all are kept when absent
save-retain-interval i - !only --most-recent-k limits what is kept
ckpt-format torch|torch_dist|zarr|torch_dcp|fsdp_dtensor torch_dist ~{_FORMAT}
dist-ckpt-format s - ~{_FORMAT}
use-dist-ckpt b false ~{_FORMAT}
auto-detect-ckpt-format b false ~{_FORMAT}
ckpt-fully-parallel-save b false ~{_FORMAT}
ckpt-fully-parallel-load b false ~{_FORMAT}
no-ckpt-fully-parallel-save b false ~{_FORMAT}
ckpt-assume-constant-structure b false ~{_FORMAT}
dist-ckpt-strictness s - ~{_FORMAT}
non-persistent-save-interval i - !use --save-interval and --most-recent-k
ckpt-convert-format s - !this command converts no Megatron checkpoint; run Megatron's own script
ckpt-convert-save s - !this command converts no Megatron checkpoint; run Megatron's own script
# Logs and evaluation
log-interval i 100 @train.log_every every step when absent
log-throughput b false ~{_LOGGED}
log-progress b false ~{_LOGGED}
log-params-norm b false ~norms of parameters are not logged
log-num-zeros-in-grad b false ~zeros in gradients are not counted
log-memory-to-tensorboard b false ~{_LOGGED}
log-timers-to-tensorboard b false ~{_LOGGED}
log-validation-ppl-to-tensorboard b false ~perplexity is always logged
log-loss-scale-to-tensorboard b true ~{_LOGGED}
log-world-size-to-tensorboard b false ~{_LOGGED}
timing-log-level i 0 ~{_LOGGED}
logging-level i - ~{_LOGGED}
tensorboard-dir s - @output.tensorboard files go into the --save folder
tensorboard-queue-size i 1000 ~TensorBoard's own default is used
tensorboard-log-interval i 1 ~as --log-interval
wandb-project s - =output.wandb
wandb-exp-name s - ~{_WANDB}
wandb-entity s - ~{_WANDB}
wandb-save-dir s - ~{_WANDB}
eval-interval i 1000 =train.eval_every
eval-iters i 100 @train.eval_batches
full-validation b false @train.eval_batches
skip-train b false !this command trains; it does not evaluate alone
profile b false ~{_PROFILE}
use-pytorch-profiler b false ~{_PROFILE}
profile-step-start i 10 ~it acts with --profile only
profile-step-end i 12 ~it acts with --profile only
profile-ranks l 0 ~it acts with --profile only
record-memory-history b false ~{_PROFILE}
memory-snapshot-path s snapshot.pickle ~it acts with --record-memory-history only
# Adapters
lora-rank i - =lora_rank
lora-alpha f - =lora_alpha
lora-dropout f - =lora_dropout
lora-targets l - @lora_targets
# Kernels and internals
use-mcore-models b false ~{_KERNEL}
use-legacy-models b false ~{_KERNEL}
spec l - ~{_KERNEL}
use-flash-attn b false ~{_KERNEL}
attention-backend s auto ~{_KERNEL}
transformer-impl s transformer_engine ~{_KERNEL}
cross-entropy-loss-fusion b false ~the loss is always fused with the output head
cross-entropy-fusion-impl s native ~the loss is always fused with the output head
no-masked-softmax-fusion b false ~{_KERNEL}
no-bias-swiglu-fusion b false ~{_KERNEL}
no-bias-dropout-fusion b false ~{_KERNEL}
no-rope-fusion b false ~{_KERNEL}
apply-rope-fusion b false ~{_KERNEL}
no-gradient-accumulation-fusion b false ~{_KERNEL}
no-gradient-reduce-div-fusion b false ~{_KERNEL}
no-persist-layer-norm b false ~{_KERNEL}
no-async-tensor-model-parallel-allreduce b false ~{_KERNEL}
enable-cuda-graph b false ~{_KERNEL}
use-cpu-initialization b false ~weights are drawn one at a time on the CPU always
init-model-with-meta-device b false ~models are always built without memory first
empty-unused-memory-level i 0 ~PyTorch keeps its cache
distributed-timeout-seconds-after-init i - ~--distributed-timeout-minutes holds throughout
rerun-mode s - ~steps are not rerun
log-straggler b false ~stragglers are not measured
disable-straggler-on-startup b false ~stragglers are not measured
no-initialization b false ~weights that are loaded are not drawn first
manual-gc b false ~Python's collector is left alone
manual-gc-interval i 0 ~Python's collector is left alone
"""

REFUSED_FAMILIES = {
    "moe-": _MOE,
    "fp8-": _FP8,
    "fp4-": _FP8,
    "rl-": "reinforcement learning is not offered; this command trains on shards",
    "grpo-": "reinforcement learning is not offered; this command trains on shards",
    "retro-": "retrieval models are not offered",
    "mamba-": "state-space layers are not offered",
    "hybrid-": "state-space layers are not offered",
    "heterogeneous-": "layers that differ from one another are not offered",
    "vision-": "image models are not offered",
    "muon-": "AdamW is the only optimizer",
}
"""Beginnings of names that stand for a whole feature; each flag so named is refused with the reason."""


def _read(text: str) -> dict[str, Flag]:
    flags, section = {}, ""
    for row in text.strip().split("\n"):
        if row.startswith("# "):
            section = row[2:]
            continue
        name, type_, default, fate = row.split(" ", 3)
        sign, rest = fate[0], fate[1:]
        assert sign in _KINDS and (type_ in "ifsbl" or "|" in type_) and name not in flags, row
        target, _, note = rest.partition(" ") if sign in "=@>" else ("", "", rest)
        flags[name] = Flag(name, type_, None if default == "-" else default, sign, target, note, section)
    return flags


FLAGS = _read(_TABLE)
"""Every flag by its name, in the order of the page."""
