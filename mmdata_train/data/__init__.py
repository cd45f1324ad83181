"""From the `data` section to batches: open the mix, read a step, check it, show it."""
