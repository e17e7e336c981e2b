# make demo | test | test-real | bench | lint | clean
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/ready
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: env demo test test-real bench lint format clean

env: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $(READY)

demo: $(READY)
	$(BIN)/python -m pipelines.demo

# two at a time, each file by one of them; what each runs has a core
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-real: $(READY)
	$(BIN)/python -m pytest -m real

bench: $(READY)
	$(BIN)/python -m pipelines.bench

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info
