"""docs/megatron-flags.md and the command's help, made from the table of flags."""

from __future__ import annotations

from mmdata_train.megatron_table import FLAGS, REFUSED_FAMILIES, Flag

DIFFERENCES = (
    "Dropout is 0 unless given; Megatron's default is 0.1. The run says so.",
    "Without `--train-iters` and `--train-samples` the run is one epoch; without `--split` everything is trained on.",
    "Without `--vocab-size` and a tokenizer the vocabulary is that of the shard's manifest.",
    "The loss is the mean over the counted tokens of the global batch (Megatron's `--calculate-per-token-loss`).",
    "A found run in `--save` is continued, with `--load` or without.",
    "`--load` takes a Hugging Face folder (weights, step 0; shape flags that contradict it are an error) or a folder"
    " this engine saved (continued in `--save`, in any layout). Megatron's own checkpoints are refused with the"
    " conversion to use; nothing is unpickled.",
    "The loss scale of `--fp16` starts at 65,536 instead of 2^32, every step is logged, `--lr` is 1e-5 when absent.",
    "Flags that Megatron ignores without another one (`--num-query-groups` without `--group-query-attention`) are"
    " errors.",
)
"""What a user of Megatron would not expect, for the page."""


def markdown() -> str:
    """docs/megatron-flags.md: the table for readers."""
    counts = {kind: sum(flag.kind == kind for flag in FLAGS.values()) for kind in ("map", "notice", "refuse")}
    lines = [
        "# Megatron's flags",
        "",
        f"`tools/pretrain_gpt.py` knows {len(FLAGS)} flags: {counts['map']} act (**map**), {counts['notice']} are",
        f"accepted and change no result (**notice**: the run says so), {counts['refuse']} are refused with the reason",
        "(**refuse**). `--a-b` and `--a_b` are the same; a switch may be followed by `true` or `false`. An absent flag",
        "has Megatron's default unless its row says otherwise. The row's field is the key of the YAML configuration.",
        "",
        "This page is made from `mmdata_train/megatron_table.py` (`python tools/pretrain_gpt.py --table`).",
    ]
    lines += ["", "## What differs from Megatron", "", *(f"- {text}" for text in DIFFERENCES)]
    section = ""
    for flag in FLAGS.values():
        if flag.section != section:
            section = flag.section
            lines += ["", f"## {section}", "", "| Flag | Kind | Default | What it does here |", "|---|---|---|---|"]
        lines.append(f"| `--{flag.name}` | {flag.kind} | {flag.default or ''} | {_deed(flag)} |")
    families = ", ".join(f"`--{start}*`" for start in REFUSED_FAMILIES)
    return "\n".join([*lines, "", f"Whole families are refused: {families}."]) + "\n"


def _deed(flag: Flag) -> str:
    if flag.fate == ">":
        return f"other name of `--{flag.target}`"
    if flag.fate == "?":
        return f"only `{flag.default}`: {flag.note}"
    if flag.kind != "map":
        return flag.note
    note = f": {flag.note}" if flag.note else ""
    return f"`{flag.target}`{note}"


def help_text(introduction: str) -> str:
    """The command's help: every flag that acts, by section; the rest is on the page."""
    lines, section = [introduction.strip()], ""
    for flag in FLAGS.values():
        if flag.kind != "map":
            continue
        if flag.section != section:
            section = flag.section
            lines += ["", f"{section}:"]
        default = f" [{flag.default}]" if flag.default not in (None, "false") else ""
        lines.append(f"  --{flag.name}{default}  {_deed(flag).replace('`', '')}")
    others = sum(flag.kind != "map" for flag in FLAGS.values())
    return "\n".join([*lines, "", f"{others} more are accepted without effect or refused with a reason."])
