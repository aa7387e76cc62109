# Everything lives in .venv and runs/; nothing is written outside this folder.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PRIVOPT_DATA ?=

.PHONY: run test setup check bench mutants clean

run: setup  ## train a private model on a real, sensitive data set and show what privacy costs
	@$(BIN)/privopt demo

test: setup  ## run the tests
	@$(BIN)/python -m pytest

setup: .venv/ready  ## create .venv and install privopt with its tools

check: setup  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/bench  ## measure speed against the non-private step and against Opacus, and utility with defaults
	@$(BIN)/python benchmarks/speed.py
	@$(BIN)/python benchmarks/utility.py

mutants: setup  ## seed privacy bugs one by one, and see that the tests catch each
	@$(BIN)/python -m tests.mutants

clean:  ## remove everything that the other targets made
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/ready: pyproject.toml constraints.txt
	@echo "Setting up .venv (the first time takes a minute or two) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable '.[parquet,demo,torch]'
	@touch $@

.venv/bench: .venv/ready
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	@touch $@
