# make demo · make test · make check; each sets itself up in .venv from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint types check golden docs bench bench-quick lock clean
setup: $(READY)

$(READY): requirements.lock pyproject.toml src/dragoman/model/fused.c src/dragoman/model/fused_typed.h
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/dragoman demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

check: lint types test

golden: setup  # the losses of 20 deterministic steps: a refactor keeps them
	$(BIN)/python -m pytest tests/integration/test_golden.py -v

docs: setup  # write the generated pages
	$(BIN)/python -c "from dragoman.recipe import reference; print(reference(), end='')" > docs/config.md

bench-quick bench: setup  # a few minutes of the benchmarks, and the change since the figures of bench/last.json
	$(BIN)/python bench/quick.py

lock: setup  # after a change of pyproject.toml: install it by hand in .venv, then run this
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu//' > requirements.lock

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .ruff_cache
