# Everything a fresh machine needs is Python 3.10 to 3.13 and make.
PYTHON ?= python3
VENV ?= .venv
PIP_INSTALL = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check tables clean

demo: $(VENV)/.installed  ## the main job on embedded data
	$(VENV)/bin/abnn demo

# One thread for each test process: several processes with a thread per core each would only wait for one another.
test: $(VENV)/.installed-dev  ## all tests, with line coverage
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n auto --dist loadscope --cov --cov-report=term --cov-fail-under=90

check: $(VENV)/.installed-dev  ## format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

TIERS = AUROC id/semi=tiers.auroc_id_below_semi, AUROC semi/full=tiers.auroc_semi_below_full, AUROC id/full=tiers.auroc_id_below_full
ACCURACY = accuracy=accuracy.handwritten digits
SEMI = accuracy on semi=accuracy.printed digits

tables: $(VENV)/.installed-dev  ## the tables of README and docs, from the records in results/
	$(VENV)/bin/abnn results table demo --columns "$(ACCURACY), $(TIERS), $(SEMI)" \
		--row "plain network" --row "attached network" --into README.md --marker demo
	$(VENV)/bin/abnn results table compare-digits --into docs/methods.md --marker compare-digits \
		--columns "$(ACCURACY), $(TIERS), errors AUROC=misclassification.printed digits.auroc, $(SEMI)"
	$(VENV)/bin/python -m abnn.experiments.triage --table --into docs/triage.md
	$(VENV)/bin/python benchmarks/serve.py --table
	$(VENV)/bin/abnn reproduce page

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e '.[serve]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .coverage
