# Every target sets up .venv by itself, on a fresh clone too.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamp

# Tools live in .venv; the demo and the tests find the `streamlog` program there.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help demo test quick check format bench soak clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  \033[1m%-8s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Rebuilt when the dependencies change. The first interpreter that is new enough is taken.
$(STAMP): pyproject.toml constraints.txt
	@set -e; found=; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "streamlog needs Python 3.11 or newer, and none was found (looked for python3," >&2; \
	  echo "python3.11 to python3.13). Install one, or name it: make PYTHON=/path/to/python3 …" >&2; \
	  exit 1; \
	fi; \
	echo "setting up $(VENV) with $$("$$found" --version) …"; \
	"$$found" -m venv --clear $(VENV) || { \
	  echo "$$found cannot make a virtual environment (on Debian: install python3-venv)." >&2; exit 1; }; \
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(STAMP) ## Show the whole thing: topic, produce, consume, query it with Spark
	@bash demo/run.sh

test: check ## Format, lint, types, import rules, then every test
	$(BIN)/python -m pytest

quick: $(STAMP) ## The fast tests of the inner loop
	$(BIN)/python -m pytest $(wildcard tests/unit tests/model tests/fault)

check: $(STAMP) ## Format, lint, types and import rules, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict streamlog
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code and apply safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure; prints a table
	$(BIN)/python -m bench

soak: $(STAMP) ## Groups, then maintenance beside a Spark stream, killed at random for minutes; every record counted
	$(BIN)/python -m tests.processes.group_soak
	$(BIN)/python -m tests.processes.maintenance_soak
	PYTHONPATH=.:tests $(BIN)/python -m broker.soak --minutes 5

clean: ## Remove .venv and all caches
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
