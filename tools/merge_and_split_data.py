#!/usr/bin/env python3
"""Merge JSONL files into one tokenized Megatron shard pair, or split them into train, valid and test pairs.

The command line of the user's guide, as a thin front over `mmdata.convert` with no cleaning and no deduplication, in
input order:

    python tools/merge_and_split_data.py --input-files a.jsonl b.jsonl --output-prefix out/corpus \\
        --vocab-file tokenizer.json --dataset-impl mmap --split 969,30,1

Flags may be written with dashes or underscores. For cleaning and deduplication use `mmdata convert`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mmdata
from mmdata.errors import MMDataError, UsageError

TOKENIZER_TYPES = {
    "HuggingFaceTokenizer": "a tokenizer.json or its folder (--vocab-file or --tokenizer-model)",
    "GPT2BPETokenizer": "vocab.json and merges.txt (--vocab-file and --merge-file)",
    "SentencePieceTokenizer": "a SentencePiece .model (--tokenizer-model or --vocab-file)",
    "GPTSentencePieceTokenizer": "a SentencePiece .model (--tokenizer-model or --vocab-file)",
    "Llama2Tokenizer": "a SentencePiece .model (--tokenizer-model or --vocab-file)",
    "TikTokenizer": "tiktoken ranks as NAME:FILE (--tokenizer-model or --vocab-file)",
}


def build_parser() -> argparse.ArgumentParser:
    """The guide's flags and their Megatron names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--input-files", "--input", nargs="+", required=True, help="JSONL files, folders or globs")
    parser.add_argument("--output-prefix", required=True, help="shards are written as PREFIX_text_document.bin/.idx")
    parser.add_argument("--vocab-file", help="tokenizer.json, vocab.json, SentencePiece model or tiktoken ranks")
    parser.add_argument("--merge-file", help="merges.txt that belongs to a vocab.json")
    parser.add_argument("--tokenizer-model", help="like --vocab-file, by the name Megatron users know")
    parser.add_argument("--tokenizer-type", help=f"one of {', '.join(TOKENIZER_TYPES)}; found from the files if absent")
    parser.add_argument("--dataset-impl", default="mmap", help="mmap; Megatron removed lazy and cached in 2023")
    parser.add_argument("--split", help="shares of train,valid,test, such as 969,30,1; without it one pair is written")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="one output pair for each key")
    parser.add_argument("--append-eod", action="store_true", help="accepted; the end token is always appended")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize")
    parser.add_argument("--seed", type=int, default=1234, help="seed of the split")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    return parser


def with_dashes(arguments: list[str]) -> list[str]:
    """`--input_files=x` as `--input-files=x`; values keep their underscores."""
    dashed = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        dashed.append(name.replace("_", "-") + equals + value if name.startswith("--") else argument)
    return dashed


def tokenizer_place(options: argparse.Namespace) -> str | list[str]:
    """What `mmdata` loads: one path, or the pair of vocabulary and merges file. Raises UsageError."""
    kind = options.tokenizer_type
    if kind is not None and kind not in TOKENIZER_TYPES:
        raise UsageError(f"--tokenizer-type {kind!r} is not offered; one of: {', '.join(TOKENIZER_TYPES)}")
    given = options.tokenizer_model or options.vocab_file
    if given is None:
        wanted = TOKENIZER_TYPES.get(kind or "", "a tokenizer.json, vocab.json, SentencePiece model or tiktoken ranks")
        raise UsageError(f"no tokenizer: give --vocab-file with {wanted}")
    if options.merge_file is not None:
        return [given, options.merge_file]
    if kind == "GPT2BPETokenizer" and Path(given).is_file():
        raise UsageError("GPT2BPETokenizer needs --merge-file beside --vocab-file")
    return str(given)


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code: 0 done, 1 failed, 2 wrong usage."""
    options = build_parser().parse_args(with_dashes(arguments))
    try:
        if options.dataset_impl != "mmap":
            raise UsageError(
                f"--dataset-impl {options.dataset_impl} is not offered: training reads mmap shards only "
                "(lazy and cached were removed from Megatron in 2023); use --dataset-impl mmap"
            )
        report = mmdata.convert(
            options.input_files, options.output_prefix, tokenizer_place(options),
            recipe="none", dedup="none", format="text", json_keys=tuple(options.json_keys), split=options.split,
            seed=options.seed, workers=options.workers, overwrite=options.overwrite,
            notice=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    except UsageError as error:
        print(f"merge_and_split_data: {error}", file=sys.stderr)
        return 2
    except MMDataError as error:
        print(f"merge_and_split_data: {error}", file=sys.stderr)
        return 1
    print(report.summary())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
