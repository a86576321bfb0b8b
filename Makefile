# Everything one does here, a line each. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Bytecode is kept, even where the environment says otherwise: tests start dozens of processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
# Always made anew: what it depends on is all of kvbench.
.PHONY: build/compiled help install demo up check fix test test-stack test-traces test-browser test-compose test-vllm test-compiled gates claims bench ci clean

help: ## List the targets
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvbench needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed ## Make .venv and install kvbench into it

demo: install ## Three simulated pods, two routing policies, one report; under a minute
	@$(BIN)/kvbench demo $(ARGS)

up: install ## docker compose up, with a look around first: docs/compose.md (COMPOSE_PROFILES=sim needs no GPU)
	@CA_BUNDLE="$${CA_BUNDLE:-$${PIP_CERT:-/dev/null}}" $(BIN)/kvbench up --compose

check: install ## Format, lint, types, layers, spelling; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

fix: install ## Format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## The tests that need nothing but Python; under two minutes
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

test-stack: install ## Whole stacks of processes: killed, interrupted, late, gated; minutes (Debian: prometheus prometheus-alertmanager)
	$(BIN)/pytest -m stack $(ARGS)

test-vllm: install ## The tests against a real vLLM on the CPU: REAL_VLLM=path/to/serve
	REAL_VLLM="$(REAL_VLLM)" $(BIN)/pytest -m vllm $(ARGS)

test-traces: install ## The tests on real traces: TRACES=folder (the README says where to get them)
	KVBENCH_TRACES="$(TRACES)" $(BIN)/pytest -m traces $(ARGS)

test-browser: install ## The report and Locust's web UI in a real Chromium (Debian: apt-get install chromium)
	$(BIN)/pytest -m browser $(ARGS)

build/compiled: install
	rm -rf $@
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/pip install --quiet --no-deps --target $@ .
	PYTHONPATH=$@ $(BIN)/python -P -c 'from kvbench.router import forward; assert forward.__file__.endswith(".so")'

test-compiled: build/compiled ## The fast tests on the wheel whose busiest modules are compiled (Debian: gcc)
	PYTHONPATH=$(CURDIR)/$< $(BIN)/pytest -n 2 --dist worksteal $(ARGS)

gates: install ## kvbench held to gates of its own: hits and balance of its router, and what it adds
	$(BIN)/python scripts/own_gates.py

claims: install ## Is docs/claims.md still what its commands give?
	$(BIN)/python scripts/make_claims.py --check

test-compose: install ## docker compose up, profile sim, under a Docker engine: alerts, data, ends; minutes
	$(BIN)/pytest -m compose $(ARGS)

bench: install ## What each part costs (PEERS=folder of routers, TRACES=folder of traces): docs/performance.md
	$(BIN)/python scripts/bench_kvcache.py
	$(BIN)/python scripts/bench_pod.py
	$(BIN)/python scripts/bench_load.py
	-$(MAKE) build/compiled # without a C compiler, one row less
	$(BIN)/python scripts/bench_router.py --peers $(or $(PEERS),peers)
	$(BIN)/python scripts/bench_index.py
	$(BIN)/python scripts/bench_exporter.py
	$(BIN)/python scripts/bench_records.py
	$(if $(TRACES),$(BIN)/python scripts/bench_simulate.py $(TRACES)/mooncake_conversation_trace.jsonl)

ci: check test test-stack ## What must be green before a change lands, but for the real engine

clean: ## Remove what was built; runs/ stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
