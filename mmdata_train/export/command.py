"""`mmdata-train export`: a checkpoint of any layout as a Hugging Face folder, a PEFT adapter or a merged model.

One process, no ranks. Memory is bounded by the largest tensor (in float32, with the chunk it is stored in), and with
an adapter by the adapter's own size besides; the disk needed is known and checked before anything is written.
"""

from __future__ import annotations

from pathlib import Path

from mmdata_train.errors import ExportError
from mmdata_train.export.adapter import export_adapter, export_peft_folder
from mmdata_train.export.description import stored_dtype
from mmdata_train.export.model_folder import WeightPlan, write_model
from mmdata_train.export.options import ExportOptions, ExportResult
from mmdata_train.export.origin import find_checkpoint, read_origin
from mmdata_train.export.tensors import CheckpointTensors, assemble, check_complete, outgoing
from mmdata_train.precision import DTYPES
from mmdata_train.run_folder import read_state
from mmdata_train.safetensors_file import Entry


def export_checkpoint(checkpoint: str | Path, options: ExportOptions) -> ExportResult:
    """Write `options.output` from a checkpoint, a run's folder (its latest checkpoint), or a PEFT adapter's folder.

    Raises ExportError, CheckpointError, ModelError, AdapterError, OutputError, TokenizerError, ConfigError.
    """
    if (Path(checkpoint) / "adapter_config.json").is_file():
        return export_peft_folder(Path(checkpoint), options)
    found = find_checkpoint(checkpoint)
    origin = read_origin(found, options.base)
    held = CheckpointTensors(found)
    result = ExportResult(options.to, str(options.output), str(found), step=read_state(found).get("step"))
    if held.adapters and options.to == "hf":
        raise ExportError(
            f"{found} holds an adapter, no whole model; use --to peft for the adapter, --to merged for base and adapter"
        )
    if options.to != "hf":
        if not held.adapters:
            raise ExportError(f"{found} holds a whole model, no adapter; use --to hf")
        return export_adapter(held, origin, options, result)
    wanted = {out.name: out for out in outgoing(origin.model)}
    check_complete(held, wanted.values(), origin.model)
    dtype = DTYPES.get(options.dtype) or stored_dtype(origin.config)
    entries = [Entry(out.name, out.shape, dtype) for out in wanted.values()]
    plan = WeightPlan(entries, lambda name: assemble(held, wanted[name]), dtype)
    write_model(origin, options, result, plan, [found])
    return result
