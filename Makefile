# Everything is set up inside .venv; `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Other engines need other versions of what we use, so they get an environment of their own.
PEERS := .venv-peers
PEERS_READY := $(PEERS)/.ready
# One thread a worker: two torch workers with two threads each crowd two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
WORKERS ?= logical
PARALLEL := -n $(WORKERS) --maxprocesses=4 --dist=loadfile

.PHONY: help venv demo test check format snapshots verify-real bench bench-peers clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## set up .venv (every other target does so when needed)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "adaptive needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "[1/3] virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] torch, at the version in constraints.txt"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	@echo "[3/3] adaptive and what it needs to run, test and compare"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[engine,peers,dev]'
	@touch $@

demo: $(READY) ## a real model on real prompts: no drafting, a fixed depth, an adaptive depth
	@$(BIN)/adaptive demo

test: $(READY) ## the whole suite, the small real model included
	$(PYTEST) $(PARALLEL) -m "not slow"

check: $(READY) ## lint, format, types, import contracts and the house rules
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q tests/rules

format: $(READY) ## let ruff sort, fix and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

snapshots: $(READY) ## accept the command line's present help as the recorded one
	ADAPTIVE_UPDATE_SNAPSHOTS=1 $(PYTEST) -q tests/rules/test_cli_help.py

verify-real: $(READY) ## minutes: every decoded token of the real model against plain decoding and transformers
	$(PYTEST) -s -m "real and slow"

bench: $(READY) ## controller cost per step, one verify forward, then policies on the built-in prompts
	$(BIN)/python bench/controller_overhead.py
	$(BIN)/python bench/engine.py
	$(BIN)/adaptive bench --peers transformers

bench-peers: $(READY) ## beside transformers and OpenVINO GenAI, the latter in .venv-peers
	@$(MAKE) --no-print-directory $(PEERS_READY) || echo "OpenVINO GenAI can not be set up here (see above); the rest is measured without it"
	@$(BIN)/python bench/peers.py --venv $(PEERS) $(ARGS)

$(PEERS_READY): bench/peers-requirements.txt
	@echo "[1/2] virtual environment in $(PEERS)"
	@$(PYTHON) -m venv --clear $(PEERS)
	@echo "[2/2] OpenVINO GenAI and its exporter, at the versions in bench/peers-requirements.txt (about 1.5 GiB)"
	@$(PEERS)/bin/python -m pip install -q --disable-pip-version-check --no-deps -r bench/peers-requirements.txt
	@touch $@

clean: ## remove .venv, .venv-peers and every cache in this folder
	rm -rf $(VENV) $(PEERS) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find adaptive engine policies tests bench examples -name __pycache__ -prune -exec rm -rf {} +
