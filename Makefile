# make demo | test | test-latest | test-real | notebook | docs | fuzz | chaos | wheel-test | bench | bench-quick | lint | lock | clean
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV := .venv
BIN := $(ENV)/bin
READY := $(ENV)/ready
TORCH := torch==2.13.0
# wheels alone, whose hashes the lock holds: nothing of a package runs while it is installed
LOCKED := -m pip install --quiet --only-binary :all: --no-deps --require-hashes
# of torch a build without CUDA where pip finds one, else the published one and what it needs
LOCKED_TORCH = $(1) $(LOCKED) -r requirements-cpu.lock 2>/dev/null || $(1) $(LOCKED) -r requirements-cuda.lock
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: env demo test pytest test-latest test-real notebook docs fuzz chaos wheel-test bench bench-quick lint format lock clean

env: $(READY)

# a torch that is there stays
$(READY): pyproject.toml requirements.lock requirements-cpu.lock requirements-cuda.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(ENV)
	$(BIN)/python $(LOCKED) -r requirements.lock
	$(BIN)/python -c 'import torch' 2>/dev/null || $(call LOCKED_TORCH,$(BIN)/python)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m pipelines.demo

test: lint pytest

# two at a time, each file by one of them; what each runs has a core
pytest: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# with the newest of all that pyproject.toml allows but torch, in an environment of its own
test-latest: $(READY)
	rm -rf .venv-latest
	$(PYTHON) -m venv .venv-latest
	$(call LOCKED_TORCH,.venv-latest/bin/python)
	$(BIN)/uv pip install --quiet --python .venv-latest/bin/python --editable '.[dev]' $(TORCH)
	touch .venv-latest/ready
	$(MAKE) pytest ENV=.venv-latest

# the notebook from top to bottom, in a minute
notebook: $(READY)
	$(BIN)/python -m pytest -m notebook

# the site, in build/docs; its tools come into the environment with the first one. A warning is an error
docs: $(ENV)/docs
	$(BIN)/python -m docs.generate build/docs-source
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning -c docs -d build/docs-trees build/docs-source build/docs
	@echo 'open build/docs/index.html'

$(ENV)/docs: requirements-docs.lock $(READY)
	$(BIN)/python $(LOCKED) -r requirements-docs.lock
	touch $@

test-real: $(READY)
	$(BIN)/python -m pytest -m real

# damaged files of every kind that is read; a table of how they ended
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/campaign.py --minutes 30

# faults while runs train on two Ray nodes of this machine; a table of what came of them (an hour or so)
FAULTS := 50
SEED := 0
chaos: $(READY)
	$(BIN)/python tests/chaos/campaign.py --faults $(FAULTS) --seed $(SEED)

# what a user of the wheel has: an environment, a folder and data of their own, and no repository
wheel-test: $(READY)
	rm -rf build
	set -e; at=$$(mktemp -d); trap 'rm -rf "$$at"' EXIT; \
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$$at" .; \
	$(PYTHON) -m venv "$$at/env"; export PATH="$$at/env/bin:$$PATH"; unset PYTHONPATH; \
	python $(LOCKED) -r requirements.lock; \
	$(call LOCKED_TORCH,python); \
	python -m pip install --quiet --no-deps "$$at"/polypool-*.whl; \
	mkdir "$$at/home"; cd "$$at/home"; set -x; \
	python -m pipelines.train --list >/dev/null; \
	polypool check gpo; \
	polypool demo --images 60 --videos 40 --epochs 1; \
	polypool --help

# all rows, on a machine that does nothing else; ends with 1 where a target is missed
bench: $(READY)
	$(BIN)/python -m pipelines.bench

# in two minutes what is off its target by more than twice, on a busy machine, too
bench-quick: $(READY)
	$(BIN)/python -m pipelines.bench --quick

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pipelines.tables --check README.md pipelines/results/poolings.md

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the newest of all that pyproject.toml allows, for every platform; `make lock UPGRADE=` only adds and removes
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
