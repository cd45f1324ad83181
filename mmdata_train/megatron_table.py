"""Megatron's options and what becomes of each: mapped to our configuration, accepted with a notice, or refused with a
reason.

One row an option, `name kind target`. kind: i whole number, f number, s text, b switch, l list. target: `=key` sets a
key of the configuration, `@name` is worked out together with others in `megatron_flags`, `~reason` is accepted and
has no effect, `!reason` is refused. Names are spelled with `-`; `_` is taken as the same. Source: Megatron-LM's
arguments as of August 2026.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["i", "f", "s", "b", "l"]


class Option(NamedTuple):
    """One option of Megatron's. action is the first character of the target, detail the rest."""

    kind: Kind
    action: str
    detail: str


_MOE = "!mixtures of experts are not offered; use a dense model"
_FUSED = "~kernels are chosen by PyTorch"
_LOG = "~loss, norm, rate, tokens/s, TFLOP/s and memory are logged at every step"

TABLE = f"""
num-layers i =model.num_layers
hidden-size i =model.hidden_size
num-attention-heads i =model.num_heads
ffn-hidden-size i =model.intermediate_size
kv-channels i =model.head_dim
group-query-attention b @
num-query-groups i @
max-position-embeddings i =model.max_positions
normalization s @
norm-epsilon f =model.norm_eps
layernorm-epsilon f =model.norm_eps
swiglu b @
disable-bias-linear b @
add-qkv-bias b @
add-bias-linear b ~on unless --disable-bias-linear
qk-layernorm b =model.qk_norm
position-embedding-type s @
use-rotary-position-embeddings b @
rotary-base f =model.rope_theta
rotary-percent f @
rotary-seq-len-interpolation-factor f @
use-rope-scaling b @
rope-scaling-factor f @
untie-embeddings-and-output-weights b @
make-vocab-size-divisible-by i @
vocab-size i =model.vocab_size
padded-vocab-size i ~the vocabulary is padded to --make-vocab-size-divisible-by
attention-dropout f =model.attention_dropout
hidden-dropout f =model.dropout
init-method-std f =model.init_std
apply-layernorm-1p b !zero-centred norms are not offered; convert the weights by adding 1
window-size l @
openai-gelu b @
squared-relu b @
quick-geglu b !this activation is not offered; use --swiglu
attention-softmax-in-fp32 b ~attention kernels accumulate in fp32
apply-query-key-layer-scaling b ~it changes rounding only
num-experts i {_MOE}
expert-model-parallel-size i @
moe-router-topk i {_MOE}
moe-grouped-gemm b {_MOE}
moe-ffn-hidden-size i {_MOE}
mtp-num-layers i !multi-token prediction is not offered; leave it out
tensor-model-parallel-size i =parallel.tensor
pipeline-model-parallel-size i =parallel.pipeline
sequence-parallel b @
context-parallel-size i =parallel.context
num-layers-per-virtual-pipeline-stage i @
num-virtual-stages-per-pipeline-rank i @
decoder-first-pipeline-num-layers i @
decoder-last-pipeline-num-layers i @
account-for-embedding-in-pipeline-split b ~stages are split with the head weighed already
account-for-loss-in-pipeline-split b ~stages are split with the head weighed already
pipeline-model-parallel-layout s !use --set parallel.stage_layers=[...]
use-distributed-optimizer b @
use-megatron-fsdp b @
use-torch-fsdp2 b @
data-parallel-sharding-strategy s @
torch-fsdp2-no-reshard-after-forward b @
num-distributed-optimizer-instances i !use --set parallel.shard_size=N
outer-dp-sharding-strategy s !use --set parallel.shard_size=N
overlap-grad-reduce b ~on already
overlap-param-gather b ~on already
tp-comm-overlap b ~tensor-parallel collectives are not overlapped
no-overlap-p2p-communication b ~the schedule decides
ddp-bucket-size i ~gradients are reduced layer by layer
ddp-average-in-collective b ~gradients are summed and the loss is divided by the global number of tokens
align-grad-reduce b ~gradients are reduced layer by layer
distributed-backend s ~NCCL on GPUs, gloo on CPUs
distributed-timeout-minutes f =parallel.timeout_minutes
use-tp-pp-dp-mapping b !ranks are ordered tp, dp, pp
bf16 b @
fp16 b @
loss-scale f @
initial-loss-scale f =train.initial_loss_scale
min-loss-scale f =train.min_loss_scale
loss-scale-window i =train.loss_scale_window
hysteresis i =train.loss_scale_hysteresis
accumulate-allreduce-grads-in-fp32 b ~always so
grad-reduce-in-bf16 b ~gradients are reduced in fp32, which is more exact
use-precision-aware-optimizer b ~weights and moments are kept in fp32
main-params-dtype s @
main-grads-dtype s @
exp-avg-dtype s @
exp-avg-sq-dtype s @
fp8-format s !fp8 is not offered here; use --bf16
fp8-recipe s !fp8 is not offered here; use --bf16
fp16-lm-cross-entropy b ~the loss is computed in fp32
check-for-nan-in-loss-and-grad b ~a non-finite step is skipped, counted and its parameter named
no-check-for-nan-in-loss-and-grad b ~the check costs nothing and stays on
recompute-activations b @
recompute-granularity s @
recompute-method s ~every layer is recomputed alike
recompute-num-layers i ~every layer is recomputed alike
recompute-modules l ~selective recomputation keeps matrix products and attention
activation-checkpointing b @
checkpoint-activations b @
distribute-saved-activations b ~sequence parallelism splits what is kept
optimizer-cpu-offload b =parallel.cpu_offload
optimizer-offload-fraction f ~with --optimizer-cpu-offload all of it is offloaded
optimizer s @
lr f =train.lr
min-lr f =train.min_lr
lr-decay-style s @
lr-decay-iters i @
lr-decay-samples i !use --train-iters; the rate decays over the whole run
lr-warmup-iters i =train.warmup_steps
lr-warmup-samples i !use --lr-warmup-iters
lr-warmup-fraction f =train.warmup_ratio
lr-warmup-init f @
lr-wsd-decay-style s @
lr-wsd-decay-iters i @
weight-decay f =train.weight_decay
start-weight-decay f !weight decay is constant; use --weight-decay
end-weight-decay f !weight decay is constant; use --weight-decay
weight-decay-incr-style s @
clip-grad f =train.clip_grad
adam-beta1 f =train.beta1
adam-beta2 f =train.beta2
adam-eps f =train.eps
override-opt-param-scheduler b ~the schedule follows this run's options
use-checkpoint-opt-param-scheduler b !the schedule follows this run's options; give the former ones
calculate-per-token-loss b ~always so
micro-batch-size i =train.micro_batch_size
global-batch-size i =train.global_batch_size
train-iters i =train.steps
train-samples i @
rampup-batch-size l @
decrease-batch-size-if-needed b !choose a --global-batch-size that divides
exit-interval i !use --train-iters
exit-duration-in-mins f =train.exit_after_minutes
exit-signal-handler b ~on already
iterations-to-skip l !bad steps are skipped when their gradients are not finite
seq-length i =data.seq_length
data-path l =data.train
train-data-path l =data.train
valid-data-path l @
test-data-path l ~test sets are measured by `mmdata-train evaluate`
split s =data.split
data-cache-path s =data.cache_dir
dataloader-type s @
num-workers i =data.loading.workers
no-mmap-bin-files b ~shards are always mapped
mock-data b @
reset-position-ids b =data.reset_positions
reset-attention-mask b =data.reset_attention
eod-mask-loss b !make the shard with loss spans, which say what counts
tokenizer-type s ~the tokenizer's files say what it is
tokenizer-model s =tokenizer
vocab-file s @
merge-file s ~found beside --vocab-file
sft b !convert chat data with `mmdata convert`, which writes what counts beside the shard
sft-tokenizer-prompt-format s !choose the template with `mmdata convert --chat-template`
seed i @
save s =output.dir
load s @
pretrained-checkpoint s @
finetune b @
save-interval i =output.save_every
async-save b =output.async_save
ckpt-format s ~checkpoints are torch's distributed ones
dist-ckpt-format s ~checkpoints are torch's distributed ones
no-save-optim b !checkpoints hold the optimizer so that a run can go on; export weights instead
no-save-rng b ~random state follows from the step
no-load-optim b @
no-load-rng b ~random state follows from the step
ckpt-step i !name the checkpoint's folder
use-checkpoint-args b ~the model's shape is read from its folder
exit-on-missing-checkpoint b @
most-recent-k i =output.keep
save-retain-interval i !the newest --most-recent-k and the best are kept
log-interval i =train.log_every
log-throughput b {_LOG}
log-params-norm b {_LOG}
log-num-zeros-in-grad b {_LOG}
log-memory-to-tensorboard b {_LOG}
log-validation-ppl-to-tensorboard b ~always so
timing-log-level i {_LOG}
tensorboard-dir s @
wandb-project s ~not sent anywhere; the log is log.jsonl in the output folder
wandb-exp-name s ~not sent anywhere; the log is log.jsonl in the output folder
eval-interval i =train.eval_every
eval-iters i =train.eval_batches
full-validation b @
skip-train b !use `mmdata-train evaluate`
profile b ~use torch.profiler around `mmdata_train.finetune`
use-pytorch-profiler b ~use torch.profiler around `mmdata_train.finetune`
profile-step-start i ~use torch.profiler around `mmdata_train.finetune`
profile-step-end i ~use torch.profiler around `mmdata_train.finetune`
profile-ranks l ~use torch.profiler around `mmdata_train.finetune`
record-memory-history b ~use torch.cuda.memory around `mmdata_train.finetune`
memory-snapshot-path s ~use torch.cuda.memory around `mmdata_train.finetune`
deterministic-mode b =train.deterministic
fake-process-group b !use `mmdata-train plan` for a dry run
no-masked-softmax-fusion b {_FUSED}
no-bias-swiglu-fusion b {_FUSED}
no-bias-gelu-fusion b {_FUSED}
no-bias-dropout-fusion b {_FUSED}
no-rope-fusion b {_FUSED}
no-gradient-accumulation-fusion b {_FUSED}
no-persist-layer-norm b {_FUSED}
use-mcore-models b {_FUSED}
use-flash-attn b {_FUSED}
cross-entropy-loss-fusion b ~the loss is fused with the head already
transformer-impl s {_FUSED}
attention-backend s {_FUSED}
manual-gc b ~Python's collector is left alone
"""


def options() -> dict[str, Option]:
    """Every known option by its name."""
    found = {}
    for row in TABLE.strip().split("\n"):
        name, kind, target = row.split(" ", 2)
        assert kind in ("i", "f", "s", "b", "l") and target[0] in "=@~!", row
        found[name] = Option(kind, target[0], target[1:])  # type: ignore[arg-type]
    return found
