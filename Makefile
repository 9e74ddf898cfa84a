# make run    run every notebook and print what each one proves
# make test   run the whole test suite, the notebooks included
# make lab    open JupyterLab on the notebooks
# make site   write the executed workbook as a static site into out/site, and README's picture
# make lint   check the form of code and notebooks, and the types of the core
#
# A server that brings its own torch keeps it with: make run SYSTEM_TORCH=1

PYTHON ?= python3
VENV ?= .venv

ifdef SYSTEM_TORCH
VENV_FLAGS = --system-site-packages
PIP_FLAGS =
else
VENV_FLAGS =
PIP_FLAGS = -c constraints.txt
endif

VENV_PYTHON = $(VENV)/bin/python
INSTALLED = $(VENV)/.installed

.PHONY: run test lab site lint
.DELETE_ON_ERROR:

run: $(INSTALLED)
	$(VENV_PYTHON) -m kvzero run

test: $(INSTALLED)
	$(VENV_PYTHON) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The filter keeps outputs out of what git sees of the notebooks, so that a saved notebook does not change the clone.
lab: $(INSTALLED)
	-git config filter.canonical.clean "$(VENV_PYTHON) kvzero/workbook/canonical.py -"
	$(VENV_PYTHON) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) \
	    --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb

site: $(INSTALLED)
	$(VENV_PYTHON) -m kvzero.workbook.cover
	$(VENV_PYTHON) -m kvzero run --html

lint: $(INSTALLED)
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) -m kvzero.workbook.canonical notebooks/*.ipynb

# Set-up is done again only when what is to be installed has changed.
$(INSTALLED): pyproject.toml constraints.txt
	@echo "Setting up $(VENV), once; this can take some minutes"
	$(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(VENV_PYTHON) -m pip install --disable-pip-version-check $(PIP_FLAGS) -e '.[workbook,test]'
	@touch $@
