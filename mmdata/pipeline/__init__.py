"""The stages joined into one run: what a worker does to a block, what the parent writes, how a run ends."""
