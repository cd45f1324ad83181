"""One file for each kind of tokenizer; `mmdata.tokenizer` is the door."""
