"""What can be chosen for an export, and what one reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmdata_train.errors import ConfigError
from mmdata_train.precision import DTYPES

Target = Literal["hf", "peft", "merged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportOptions:
    """dtype: `auto` (the source's), `fp32`, `bf16` or `fp16`. max_shard_bytes: of one weights file. base, tokenizer: in
    place of those the checkpoint names. chat_template: `auto`, `tokenizer`, a built-in's name or a file. serve:
    `ollama` or None.
    """

    to: Target
    output: Path
    dtype: str = "auto"
    max_shard_bytes: int = 5 * 10**9
    base: str | None = None
    tokenizer: str | None = None
    chat_template: str = "auto"
    serve: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigError(f"--dtype {self.dtype}: use auto, {', '.join(DTYPES)}")
        if self.max_shard_bytes < 1 << 10:
            raise ConfigError(f"--max-shard-size {self.max_shard_bytes} bytes: use at least 1 KB, such as 5GB")


@dataclass(slots=True)
class ExportResult:
    """What was written. bytes: of all weight files. largest_change, largest_rounding: of a merge, over all elements."""

    to: str
    folder: str
    checkpoint: str
    step: int | None = None
    dtype: str = ""
    tensors: int = 0
    parameters: int = 0
    bytes: int = 0
    files: list[str] = field(default_factory=list)
    vocab_size: int = 0
    eos_token_id: Any = None
    chat_template_differs: bool = False
    largest_change: float | None = None
    largest_rounding: float | None = None
    notices: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        size = f"{self.tensors} tensors, {self.parameters:,} parameters, {self.bytes:,} bytes in {self.dtype}"
        made = [f"{self.folder}: {size}"]
        if self.largest_change is not None:
            made.append(
                f"merged in float32: largest change {self.largest_change:.6g}, largest rounding when stored"
                f" {self.largest_rounding:.6g}"
            )
        return made
