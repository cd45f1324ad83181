"""Names of precisions and torch's types for them: the one table."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
