"""`python -m mmdata_train`: the same as `mmdata-train`, for torchrun."""

from mmdata_train.cli import main

main()
