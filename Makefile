# make env | demo | test | test-all | test-slow | test-latest | test-real | notebook | docs | pictures | fuzz | chaos | wheel-test |
#      bench | bench-quick | gpu | gpu-sweep | lint | types | format | results | lock | clean
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV := .venv
BIN := $(ENV)/bin
READY := $(ENV)/ready
TORCH := torch==2.13.0
# only wheels whose hashes are in the lock: installing one runs none of its code
LOCKED := -m pip install --quiet --only-binary :all: --no-deps --require-hashes
# torch without CUDA where pip finds such a build, else the published one with its CUDA packages
LOCKED_TORCH = $(1) $(LOCKED) -r requirements-cpu.lock 2>/dev/null || $(1) $(LOCKED) -r requirements-cuda.lock
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: env demo test test-all test-slow pytest test-latest test-real notebook docs pictures fuzz chaos wheel-test bench bench-quick gpu gpu-sweep lint types format results lock clean

env: $(READY)
	@echo 'next: `. $(ENV)/bin/activate`, then `polypool --help`, or `make demo`'

# a torch that is installed stays
$(READY): pyproject.toml requirements.lock requirements-cpu.lock requirements-cuda.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENV)
	$(BIN)/python $(LOCKED) -r requirements.lock
	$(BIN)/python -c 'import torch' 2>/dev/null || $(call LOCKED_TORCH,$(BIN)/python)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

demo: $(READY)
	$(BIN)/polypool demo

# the linter, the type checker and every test that is not slow
test: lint pytest

# the slow tests too: whole runs on Ray clusters, slow real data
test-all: MARKERS := -m 'not real and not notebook'
test-all: lint pytest

# the slow tests alone
test-slow: MARKERS := -m 'slow and not real and not notebook'
test-slow: pytest

# two processes with a core each; a file belongs to one process
pytest: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(MARKERS)

# the tests with the newest packages that pyproject.toml allows (torch stays), in an environment of its own
test-latest: $(READY)
	rm -rf .venv-latest
	$(PYTHON) -m venv .venv-latest
	$(call LOCKED_TORCH,.venv-latest/bin/python)
	$(BIN)/uv pip install --quiet --python .venv-latest/bin/python --editable '.[dev]' $(TORCH)
	touch .venv-latest/ready
	$(MAKE) pytest ENV=.venv-latest

# the notebook from top to bottom, on rendered scenes and on photographs, in two minutes
notebook: $(READY)
	$(BIN)/python -m pytest -m notebook

# the site, in build/docs; a warning is an error
docs: $(ENV)/docs
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning -d build/docs-trees docs build/docs
	@echo 'open build/docs/index.html'

$(ENV)/docs: requirements-docs.lock $(READY)
	$(BIN)/python $(LOCKED) -r requirements-docs.lock
	touch $@

# the site's pictures anew, from runs of the demo in build/pictures, with Chromium: see docs/pictures.py
pictures: $(READY)
	test -d build/playwright || $(BIN)/uv pip install --quiet --target build/playwright playwright
	PYTHONPATH=build/playwright $(BIN)/python docs/pictures.py
	$(BIN)/polypool compare tables $(TABLES)

test-real: $(READY)
	$(BIN)/python -m pytest -m real

# damaged files of every kind that is read, and tables of the outcomes
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py --minutes 30

# faults while runs train on two Ray nodes of this machine, and a table of the outcomes (about an hour)
FAULTS := 20
SEED := 0
chaos: $(READY)
	$(BIN)/python tests/chaos.py --faults $(FAULTS) --seed $(SEED)

# the wheel in an environment of its own, away from the repository, in a folder whose modules have our folders' names
wheel-test: $(READY)
	rm -rf build
	set -e; at=$$(mktemp -d); trap 'rm -rf "$$at"' EXIT; \
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$$at" .; \
	$(PYTHON) -m venv "$$at/env"; export PATH="$$at/env/bin:$$PATH"; unset PYTHONPATH; \
	python $(LOCKED) -r requirements.lock; \
	$(call LOCKED_TORCH,python); \
	python -m pip install --quiet --no-deps "$$at"/polypool-*.whl; \
	mkdir -p "$$at/home/infra"; cd "$$at/home"; \
	for file in tasks.py encoders.py infra/__init__.py; do echo 'raise ImportError("not ours")' >$$file; done; set -x; \
	polypool train --list >/dev/null; \
	polypool check gpo; \
	polypool demo --images 60 --videos 40 --epochs 1; \
	polypool compare --experiment demo; \
	polypool export $$(polypool runs --experiment demo --json | sed -n 's/.*"run_id": "\(.*\)".*/\1/p' | head -1) --out model; \
	polypool --help

# ratios of speed, each measured side by side with its reference, on an idle machine
bench: $(READY)
	$(BIN)/python -m benchmarks

# every script at tiny sizes, within a minute: whether it runs
bench-quick: $(READY)
	$(BIN)/python -m benchmarks --quick

# what only a GPU runs, checked and measured; ends with 1 where a target is missed, with 2 without a GPU
gpu: $(READY)
	@$(BIN)/python -m benchmarks.gpu

# a tuned sweep of all aggregators on one GPU, with MLflow; ends as `make gpu` does
gpu-sweep: $(READY)
	@$(BIN)/python -m benchmarks.gpu_sweep

# files with tables and figures that are written from results
TABLES = $(shell grep -lsE '^<!-- (table|figure): ' README.md docs/results/*.md)

# the tables and figures of our results, computed anew from the archives of runs
results: $(READY)
	$(BIN)/python -m docs.generate.results

lint: $(READY) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m polypool compare tables --check $(TABLES)

types: $(READY)
	$(BIN)/ty check --python $(ENV) --output-format concise polypool/*

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the newest packages that pyproject.toml allows, for every platform; `make lock UPGRADE=` only adds and removes
UPGRADE := --upgrade
PIN = $(BIN)/uv pip compile - --quiet --universal --python-version 3.11 --only-binary :all: \
	--generate-hashes --custom-compile-command 'make lock'
COMPILE = echo '$(TORCH)' | $(PIN)
# the packages of the site alone; they leave those of the environment as they are
DOCS = import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*extras["docs"], sep="\n")
lock: $(READY)
	$(COMPILE) $(UPGRADE) pyproject.toml --extra dev --no-emit-package torch --output-file requirements.lock
	$(COMPILE) $(UPGRADE) --no-config --constraint requirements.lock --output-file requirements-cuda.lock
	$(BIN)/python -c '$(DOCS)' | $(PIN) $(UPGRADE) --constraint requirements.lock --output-file requirements-docs.lock
	echo psycopg2-binary | $(PIN) $(UPGRADE) --output-file infra/deploy/postgres.lock
	$(BIN)/python -m pip download --quiet --no-deps --dest build/torch '$(TORCH)+cpu'
	echo "$(TORCH)+cpu $$($(BIN)/python -m pip hash build/torch/*.whl | tail -1)" >requirements-cpu.lock
	rm -r build/torch

clean:
	rm -rf .venv .venv-latest build *.egg-info
