# Every target sets up what it needs; nothing is repeated that was done before.
#   make ask [Q="…"]   answer a question from the sample knowledge base
#   make test          run all tests
PYTHON ?= python3
Q ?= 公司每月提供的话费补贴金额是多少元？
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps

.PHONY: ask chat doctor test check bench bench-layout bench-loop bench-retrieval eval eval-retrieval index clean
.DELETE_ON_ERROR:

ask: $(STAMPS)/indexed
	@status=0; $(BIN)/adaptive-rag ask "$$Q" || status=$$?; \
	  if [ $$status -eq 3 ]; then exit 0; else exit $$status; fi

chat: $(STAMPS)/indexed
	@$(BIN)/adaptive-rag chat

doctor: $(STAMPS)/installed
	@$(BIN)/adaptive-rag doctor

test: $(STAMPS)/tested-with $(STAMPS)/indexed $(STAMPS)/models
	$(BIN)/python -m pytest

check: $(STAMPS)/tested-with
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(STAMPS)/indexed
	@PYTHONPATH=.:tests $(BIN)/python tests/bench/bench.py

# Own overhead, throughput, memory, and time per hop against a sequential chain in LangGraph, with a language model
# that takes the same time for every reply; ARGS="--parts hops --latency 1" chooses.
bench-loop: $(STAMPS)/benched-with
	@PYTHONPATH=.:tests $(BIN)/python tests/bench/bench_loop.py $(ARGS)

# What the order of a prompt costs on the configured language model; ARGS="--limit 12".
bench-layout: $(STAMPS)/tested-with
	@PYTHONPATH=.:tests $(BIN)/python tests/bench/bench_layout.py $(ARGS)

# ARGS="--million" also measures Elasticsearch with 1,000,000 passages, which takes most of an hour.
bench-retrieval: $(STAMPS)/tested-with
	@PYTHONPATH=.:tests:tests/programs/retrieval $(BIN)/python tests/bench/bench_retrieval.py $(ARGS)

# How well each route and each plan finds the answer, on labelled questions; ARGS="--lm local" adds the routes
# that need a language model. On the servers that the settings name, else on the embedded stores.
eval-retrieval: $(STAMPS)/installed
	@$(BIN)/python -m optimize.eval_retrieval $(ARGS)

# The whole program on labelled questions, with the configured language model: on the embedded one, half a minute each.
# ARGS="--name before --plain", then ARGS="--name after --against before".
eval: $(STAMPS)/indexed
	@$(BIN)/python -m optimize.eval_program $(ARGS)

index: $(STAMPS)/indexed

clean:
	rm -rf $(VENV) build *.egg-info

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)

$(STAMPS)/installed: pyproject.toml | $(BIN)/python
	@mkdir -p $(STAMPS)
	$(BIN)/pip install --disable-pip-version-check -e .
	@touch $@

$(STAMPS)/tested-with: $(STAMPS)/installed
	$(BIN)/pip install --disable-pip-version-check -e '.[test]'
# A real, older Milvus server. Without its dependencies: it wants a pymilvus of its own age.
	$(BIN)/pip install --disable-pip-version-check --no-deps milvus==2.3.5
	@touch $@

$(STAMPS)/benched-with: $(STAMPS)/installed
	$(BIN)/pip install --disable-pip-version-check -e '.[bench]'
	@touch $@

# Fetches and checks both embedded models, whatever language model the user has set.
$(STAMPS)/models: $(STAMPS)/installed
	ADAPTIVE_RAG_LM=local $(BIN)/adaptive-rag doctor
	ADAPTIVE_RAG_LM=local:qwen2.5-coder-0.5b $(BIN)/adaptive-rag doctor
	@touch $@

# The sample documents and the sample code; a changed file is read again, the others are not.
$(STAMPS)/indexed: $(STAMPS)/installed $(shell find data/corpus data/code -type f 2>/dev/null)
# Made anew where an older version of this program made the index.
	$(BIN)/adaptive-rag index data/corpus || $(BIN)/adaptive-rag index --rebuild data/corpus
	$(BIN)/adaptive-rag index --code data/code || $(BIN)/adaptive-rag index --rebuild --code data/code
	@touch $@

export Q
