"""mmdata_train: fine-tuning on mmdata's shards in any parallel layout."""
