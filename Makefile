# All commands of this repository; `make` without a target lists them.
#
# The first target that needs Python sets up .venv with the versions pinned in requirements.lock. Use another
# environment with `make test PY=python`, another interpreter with `make setup PYTHON=/path/to/python3.12`.
.DEFAULT_GOAL := help
VENV := .venv
# Huge pages for large arrays: fresh memory costs less, so training steps on CPUs are faster (docs/speed.md).
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Many containers set it. Each start would then compile all that it imports, which takes as long as importing it.
unexport PYTHONDONTWRITEBYTECODE
comma := ,
# Optional packages; those of the last `make setup` are installed again when the lock changes.
EXTRA ?= $(shell cat $(VENV)/.extra 2>/dev/null)
# Two test processes, each file in one of them: most of the time is compilation, which uses one core.
TEST_PROCESSES ?= --numprocesses=2 --dist=loadfile

ifdef PY
READY :=
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready-$(subst /,_,$(PYTHON))-$(subst $(comma),-,$(EXTRA))
endif

SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))

$(READY): requirements.lock pyproject.toml
	@if [ -n "$(PYTHON)" ] || ! $(VENV)/bin/python -c "import pip; $(SUPPORTED)" 2>/dev/null; then \
	  for python in $(or $(PYTHON),python3.12 python3.11 python3); do \
	    "$$python" -c "$(SUPPORTED)" 2>/dev/null && break || python=; \
	  done; \
	  [ -n "$$python" ] || { echo "Found no working Python 3.11 or 3.12 with venv ($(or $(PYTHON),looked for" \
	    "python3.12 python3.11 python3)). Install one or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 2; }; \
	  echo "Creating $(VENV) with $$($$python -V)"; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@echo "Installing the pinned dependencies into $(VENV): a minute or two, the first time"
	@$(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
	  --use-pep517 --constraint requirements.lock --editable ".[train,test$(if $(EXTRA),$(comma)$(EXTRA))]"
	@echo "$(EXTRA)" > $(VENV)/.extra
	@touch $(VENV)/.ready--$(subst $(comma),-,$(EXTRA)) $@

.PHONY: help
help: ## List all commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-24s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(READY) ## Install the pinned dependencies into .venv (EXTRA=cuda, EXTRA=cuda,slurm, PYTHON=python3.11)
	@echo "Ready: $$($(PY) -V), $$($(PY) -c 'import jax; print("jax", jax.__version__)'); source $(VENV)/bin/activate"

.PHONY: demo
demo: $(READY) ## Train a small pLSTM and ViT on arrow pointing, say what was seen (10 minutes on 2 cores)
	@$(PY) scripts/demo.py $(ARGS)

.PHONY: data-imagenet
data-imagenet: $(READY) ## Prepare ImageNet-1k from the official tars (MANUAL=/path/to/tars, DATA=/data/folder)
	@$(PY) scripts/prepare_imagenet.py --manual "$(MANUAL)" $(if $(DATA),--data "$(DATA)") $(ARGS)

.PHONY: test
test: $(READY) ## Run the quick tests (ARGS="-k name" selects some)
	$(PY) -m pytest $(TEST_PROCESSES) $(ARGS)

.PHONY: test-slow
test-slow: $(READY) ## Run the slow tests
	$(PY) -m pytest -m "slow and not gpu" $(TEST_PROCESSES) $(ARGS)

.PHONY: test-gpu
test-gpu: $(READY) ## Run the tests that need an accelerator (ARGS=--on-cpu tries them without)
	$(PY) -m pytest -m gpu $(ARGS)

.PHONY: lint
lint: $(READY) ## Check code, format, types, the direction of imports and the declared dependencies
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -c "from importlinter.cli import lint_imports_command as main; main()" --no-cache --no-logo
	$(PY) -m deptry .
	$(PY) -m mypy

# One for each file of configs/study.
table-arrow: ## Run what is missing of a study, here configs/study/arrow.yaml (ARGS=--dry-run lists its runs and their cost)
STUDIES := $(patsubst configs/study/%.yaml,table-%,$(wildcard configs/study/*.yaml))
.PHONY: $(STUDIES)
$(STUDIES): table-%: $(READY)
	$(PY) scripts/run_table.py $* $(ARGS)

.PHONY: tables
tables: $(READY) ## Write the tables, figures and generated numbers of results, README.md and docs from the run records
	$(PY) scripts/make_tables.py $(ARGS)

.PHONY: examples
examples: $(READY) ## Run examples/annotated_plstm.py and write its page and pictures
	@$(PY) scripts/render_example.py $(ARGS)

.PHONY: verify
verify: $(READY) ## Fail if tables or pages differ from the run records, or records from their curves
	$(PY) scripts/make_tables.py --check

.PHONY: benchmark
benchmark: $(READY) ## Measure on this machine (ARGS=operator, sequences, "steps arrow/plstm arrow/vit", data)
	$(PY) scripts/benchmark.py $(ARGS)

.PHONY: gpu
gpu: $(READY) ## Test and measure on a GPU, in steps that resume (ARGS="--minutes 28", ARGS=--small tries it on a CPU)
	@$(PY) scripts/gpu.py $(ARGS)

.PHONY: gpu-report
gpu-report: $(READY) ## Memory and collectives of training steps on GPUs, without one (after make setup EXTRA=gpu-report)
	$(PY) scripts/gpu_report.py $(ARGS)

.PHONY: baselines
SIZES = --sizes 48 56 64 72 80 96 128 144
baselines: $(READY) ## Measure the accuracy of shortcuts: arrow pointing, formal languages, graphs
	$(PY) scripts/shortcut_baselines.py
	$(PY) scripts/shortcut_baselines.py --size 48 --scale 0.25 $(SIZES)
	$(PY) scripts/shortcut_baselines.py --size 96 --scale 0.5 --thinnest 4 --sizes 96 144 192 240 288
	$(PY) scripts/shortcut_baselines.py --size 48 --scale 0.25 --distribution balanced --samples 20000000 $(SIZES)
	$(PY) scripts/baselines.py

.PHONY: photos
photos: $(READY) ## Draw the photographs of imagenet-small and prepare them like ImageNet
	$(PY) scripts/make_photos.py --classes 10 --train 200 --val 50 --out outputs/photos
	mkdir -p outputs/photos/data
	$(MAKE) data-imagenet MANUAL=outputs/photos DATA=outputs/photos/data ARGS=

.PHONY: lock
lock: ## Update requirements.lock from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --all-extras --universal --upgrade --quiet --no-annotate \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --output-file requirements.lock

.PHONY: clean
clean: ## Remove caches and build files (keeps .venv, runs and results)
	rm -rf .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
