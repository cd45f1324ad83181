# `make demo` and `make test` need nothing but Python 3.11 or newer: both create .venv and install into it.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types unit parity clean

.venv/demo.stamp: pyproject.toml constraints-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints-dev.txt --editable '.[train]'
	touch $@

.venv/dev.stamp: pyproject.toml constraints-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints-dev.txt --editable '.[train,parquet,zh,dev]'
	touch $@

demo: .venv/demo.stamp
	$(BIN)/python examples/demo.py out/demo

test: lint types unit

lint: .venv/dev.stamp
	$(BIN)/ruff check .

types: .venv/dev.stamp
	$(BIN)/mypy

# Two files at a time, the longest first (tests/conftest.py): most tests are one process, and a file's tests share what
# its fixtures build.
unit: .venv/dev.stamp
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Every parallel layout of up to 8 ranks against one process; half an hour on two cores, and it goes on where it stopped.
parity: .venv/dev.stamp
	$(BIN)/python benchmarks/parallel_parity.py --max-ranks 8 --out out/parity.jsonl

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache
