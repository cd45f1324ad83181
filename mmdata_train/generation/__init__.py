"""Text from a model: opening it, prompts, the loop with its cache, sampling, stopping."""
