"""Reading: from arguments to blocks of whole records, and writing JSON lines. `mmdata.jsonl` is the public door."""
