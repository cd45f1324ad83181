"""Chat records against plain text on one core: JSON lines to token ids, MB of message text a second.

    python benchmarks/chat_speed.py TOKENIZER FILE.jsonl... [--template auto] [--repeat 5] [--lengths-out FILE.npy]

Plain: the same message texts, one record each, through the same reader and `encode_documents`. Chat: the records
through the chat parser and `ChatRenderer`. MB counts UTF-8 bytes of message text in both, so template text is work that
only chat does. CPU seconds of this process; the first round (templates traced, caches cold) is printed apart.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import orjson

from mmdata.chat.formats import chat_parser
from mmdata.chat.render import ChatOptions, ChatRenderer
from mmdata.collector import collector_paused
from mmdata.document import Document
from mmdata.encode import EncodeOptions, encode_documents
from mmdata.jsonl import Block, Position
from mmdata.records import RecordOptions, RecordParser, parse_block, text_parser
from mmdata.tokenizer import load_tokenizer

BATCH = 1000


def batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Lines in lists of BATCH."""
    for start in range(0, len(lines), BATCH):
        yield lines[start : start + BATCH]


def documents_of(lines: list[bytes], parse: RecordParser) -> list[Document]:
    """Parsed records, as `convert` parses them; rejects are left out."""
    data = b"\n".join(lines)
    block = Block(0, "bench", "jsonl", 1, 0, len(data), data, Position())
    return parse_block(block, RecordOptions(), parse).documents


def seconds(run: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    """Parse, run rounds of both in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--template", default="auto")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--lengths-out", help="write the sequence lengths, for pack_speed.py")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    lines = [line for file in options.files for line in Path(file).read_bytes().split(b"\n") if line.strip()]
    chat_parse, plain_parse = chat_parser(), text_parser(("text",))
    documents = documents_of(lines, chat_parse)
    plain_lines = [orjson.dumps({"text": document.text}) for document in documents]
    size = sum(len(document.text.encode()) for document in documents) / 1e6
    renderer = ChatRenderer(tokenizer, ChatOptions(template=options.template))
    encoding = EncodeOptions(np.dtype(np.int32), append_eod=False)
    lengths: list[np.ndarray] = []
    count = len(documents)
    del documents
    gc.collect()
    gc.freeze()  # what was made for the measurement is not scanned during it

    def chat() -> None:
        lengths.clear()
        for part in batches(lines):
            with collector_paused():  # as the pipeline's workers do
                lengths.append(renderer.render_documents(documents_of(part, chat_parse)).lengths)

    def plain() -> None:
        for part in batches(plain_lines):
            with collector_paused():
                encode_documents(documents_of(part, plain_parse), tokenizer, encoding)

    print(f"{count} records, {size:.2f} MB of message text, engine: {tokenizer.engine}")
    print(f"{'round':<8} {'plain MB/s':>11} {'chat MB/s':>10} {'chat / plain':>13}")
    for number in range(options.repeat):
        plain_s, chat_s = seconds(plain), seconds(chat)
        name = "first" if number == 0 else str(number + 1)
        print(f"{name:<8} {size / plain_s:>11.1f} {size / chat_s:>10.1f} {plain_s / chat_s:>12.1%}")
    if options.lengths_out:
        np.save(options.lengths_out, np.concatenate(lengths))


if __name__ == "__main__":
    main()
