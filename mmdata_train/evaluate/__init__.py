"""Whether a model got better: perplexity over shards, answers, multiple choice, and a page of the results."""
