# make quickstart   the whole way on the shipped model and pages
# make test         everything that continuous integration runs
# make gpu          everything that only a GPU can tell, in ten minutes; the result goes to ocrquant/bench/results
# make gpu-compile  every CUDA kernel compiled for every GPU: registers, spills, instructions; needs nvcc, no GPU
# make consumers    exported checkpoints as vLLM and transformers read them
# A build of torch for your GPU: make venv TORCH="torch --index-url URL", before anything else.

PYTHON ?= python3
TORCH ?= torch==2.13.0
RECIPE ?= recipes/general/quickstart.yaml
# Two processes of one thread each: torch's own threads would fight over the same cores.
JOBS ?= 2
PYTEST_ARGS ?=

BIN := .venv/bin
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt
INSTALLED := .venv/.installed
INSTALLED_DEV := .venv/.installed-dev

.PHONY: quickstart test gpu gpu-compile families consumers lint format native venv venv-dev clean
.DELETE_ON_ERROR:

quickstart: $(INSTALLED)
	$(BIN)/ocrquant calibrate $(RECIPE)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(PYTEST_ARGS)

GPU_ARGS ?=
gpu: $(INSTALLED_DEV)
	$(BIN)/ocrquant bench gpu $(GPU_ARGS)

gpu-compile: $(INSTALLED_DEV)
	$(BIN)/python -m ocrquant.kernels.cuda

# A tiny model of every family from check to evaluate, in every format, as one table.
families: $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.families

# What vLLM and transformers read in our checkpoints; vLLM for CPUs in an environment of its own, about 3.5 GB.
CONSUMERS := .venv-consumers
CONSUMERS_ARGS ?=
consumers: $(INSTALLED_DEV) $(CONSUMERS)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.consumers --python $(CONSUMERS)/bin/python $(CONSUMERS_ARGS)

$(CONSUMERS)/.installed: $(addprefix tests/consumers/,requirements.txt plugin/pyproject.toml plugin/ocrquant_vllm_cpu.py)
	$(PYTHON) -m venv $(CONSUMERS)
	$(CONSUMERS)/bin/python -m pip install --quiet $(TORCH)
	$(CONSUMERS)/bin/python -m pip install --quiet --no-deps --requirement tests/consumers/requirements.txt
	$(CONSUMERS)/bin/python -m pip install --quiet --no-deps --no-build-isolation ./tests/consumers/plugin
	touch $@

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The extension beside the sources, for work on csrc/: `pip install --editable` builds it as well, but from the start.
CMAKE ?= cmake
NATIVE_PYTHON ?= $(abspath $(BIN)/python)
native:
	$(CMAKE) -S . -B build/native -DPython_EXECUTABLE=$(NATIVE_PYTHON) -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/ocrquant
	$(CMAKE) --build build/native --parallel $(JOBS)

venv: $(INSTALLED)

venv-dev: $(INSTALLED_DEV)

clean:
	rm -rf .venv $(CONSUMERS) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv .venv

# torch comes first and by its own line, so that the package's dependency on it is met by the build chosen here.
$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) $(TORCH)
	$(PIP) --editable .
	touch $@

# Not on top of the other: each `--editable` compiles the extension. A torch that was chosen before stays.
$(INSTALLED_DEV): pyproject.toml constraints.txt | $(BIN)/python
	test -e $(INSTALLED) || $(PIP) $(TORCH)
	$(PIP) --editable '.[dev]'
	touch $(INSTALLED) $@
