# Two commands: `make tune` finds the best configuration on this machine, `make test` checks what every change must keep.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY ?= search_spaces/studies/laptop.yaml
MARKED := not thorough and not slow and not chaos and not gpu
# A round that goes wrong from the ground up ends early and names its tests.
ROUND := --maxfail 12
PART_1 := tests/[a-n]*/ tests/[u-z]*/
PART_2 := tests/[o-r]*/ tests/s[a-s]*/
PART_3 := tests/s[t-z]*/ tests/t*/ tests/test_*.py
# The tests start hundreds of processes; each reads what the first one compiled.
unexport PYTHONDONTWRITEBYTECODE
# Five rounds share two cores: a second thread of OpenBLAS only waits for the others, which costs a quarter of all processor time.
test: export OPENBLAS_NUM_THREADS := 1
ALONE := grep -rlE 'mark\.alone|ALONE' tests --include='test_*.py'

.PHONY: tune test test-all check serve docs venv test-lowest test-newest chaos test-gpu screenshots wheel dist clean

tune: $(VENV)/.installed
	$(BIN)/autotune tune $(STUDY)

# Of the tests, those that fill the machine and wait a lot run one by one, in two rounds, beside three parts of about the same length.
test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory --jobs 5 --output-sync=target check test-alone-1 test-part-1 test-part-2 test-part-3 test-alone-2

# Every row of every matrix, every page, every fault, and a sample of the chaos.
test-all: docs
	$(MAKE) --no-print-directory test MARKED="not chaos and not gpu"

test-alone-1: $(VENV)/.installed-dev
	$(BIN)/pytest -m "alone and $(MARKED)" $(ROUND) $$($(ALONE) | grep '^tests/workers/')

test-alone-2: $(VENV)/.installed-dev
	$(BIN)/pytest -m "alone and $(MARKED)" $(ROUND) $$($(ALONE) | grep -v '^tests/workers/')

test-part-%: $(VENV)/.installed-dev
	$(BIN)/pytest -m "not alone and $(MARKED)" $(ROUND) $(PART_$*)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir site
	@echo "site/index.html is the start page; with its search: $(BIN)/python -m http.server --directory site"

serve: $(VENV)/.installed
	$(BIN)/autotune serve

# In environments of their own, which they install: with the lowest versions that pyproject.toml allows, and with the newest.
test-lowest test-newest:
	$(PYTHON) .ci/version_job $(@:test-%=%)

chaos: $(VENV)/.installed-dev
	$(BIN)/pytest -m "chaos or slow" -s tests/chaos tests/benchmarks/test_dry_run_truth.py

test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest -m gpu

screenshots: $(VENV)/.installed-dev
	$(BIN)/python -m tests.browser.screenshots docs/images/pages $$(mktemp -d)

wheel: $(VENV)/.installed-dev
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

# What a release uploads: the same files whoever makes them of the same commit.
dist: $(VENV)/.installed-dev
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*

venv: $(VENV)/.installed-dev

# An installation under the former name would stay beside this one, with the same command.
INSTALL := $(BIN)/pip uninstall --quiet --yes autotune 2>/dev/null; $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[native,ray,service]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	touch $(VENV)/.installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "autotune needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
