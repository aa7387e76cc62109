# Everything lives in .venv, runs and docs/_build; nothing is written outside this folder.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_CACHE_DIR := 1
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib
export PRIVOPT_DATA ?=
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, which would all compile the same

.PHONY: run test setup check docs bench mutants clean

run: .venv/run  ## train private models of a real, sensitive survey and show what privacy costs
	@$(BIN)/privopt demo

test: setup  ## run the tests
	@$(BIN)/python -m pytest

setup: .venv/ready  ## create .venv and install privopt with torch and the developers' tools

check: setup docs  ## format, lint, types, import contracts, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/docs  ## build the documentation into docs/_build; a warning is an error
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --quiet docs docs/_build

bench: .venv/bench  ## measure speed against the non-private step and against Opacus, and utility with defaults
	@$(BIN)/python benchmarks/speed.py --json benchmarks/results/speed.json
	@$(BIN)/python benchmarks/utility.py

mutants: setup  ## seed privacy bugs one by one, and see that the tests catch each
	@$(BIN)/python -m tests.mutants

clean:  ## remove everything that the other targets made
	rm -rf .venv runs docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# Each stamp adds to what the one before it installed: what `make run` needs, the rest, documentation, peers.

.venv/run: pyproject.toml constraints.txt
	@echo "Setting up .venv (the first time takes a minute or so) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[demo,report]'
	@touch $@

.venv/ready: .venv/run
	@echo "Adding torch and the developers' tools to .venv (the first time takes a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --group integrations --editable '.[parquet,demo,report,torch,federated]'
	@touch $@

.venv/docs: .venv/ready
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

.venv/bench: .venv/ready
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	@$(PYTHON) -m venv .venv/diffprivlib
	@.venv/diffprivlib/bin/python -m pip install --quiet 'diffprivlib>=0.6.6' 'scikit-learn<1.6'
	@touch $@
