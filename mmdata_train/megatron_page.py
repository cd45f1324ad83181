"""docs/megatron-flags.md and the command's help, made from the table of flags."""

from __future__ import annotations

from mmdata_train.megatron_table import FLAGS, REFUSED_FAMILIES, Flag


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
