# Everything a fresh machine needs is Python 3.10 to 3.13 and make.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
UV = $(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python
# uv installs in a tenth of pip's time, from where pip is told to in the environment. Where it finds less than all, pip installs.
INSTALL = ($(PIP) uv && $(UV) -c constraints.txt -e '.[$(EXTRAS)]') || $(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
UV_INDEX ?= $(PIP_EXTRA_INDEX_URL)
UV_SYSTEM_CERTS ?= true
export $(foreach name,UV_FIND_LINKS UV_DEFAULT_INDEX UV_INDEX UV_SYSTEM_CERTS,$(if $($(name)),$(name)))
unexport PYTHONDONTWRITEBYTECODE  # what is imported is compiled once, not in each of the many processes of the tests

.PHONY: demo test coverage check docs docs-serve release-check tables reproduce clean

demo: $(VENV)/.installed  ## the main job on embedded data
	$(VENV)/bin/abnn demo

# One thread for each test process: several processes with a thread per core each would only wait for one another.
TEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n auto --dist worksteal

test: $(VENV)/.installed-dev  ## all tests
	$(TEST)

coverage: $(VENV)/.installed-dev  ## all tests, counting lines: takes a third longer
	$(TEST) --cov --cov-report=term --cov-fail-under=90

check: $(VENV)/.installed-dev  ## format, lint, types, who imports whom, and dangerous calls
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/bandit --quiet --configfile pyproject.toml --recursive src/abnn

docs: $(VENV)/.installed-dev  ## the documentation, into site/; runs the tutorials that have changed
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

docs-serve: $(VENV)/.installed-dev  ## the same at http://127.0.0.1:8001/, again after each change
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs serve --dev-addr 127.0.0.1:8001

release-check: $(VENV)/.installed-dev  ## sdist and wheel in fresh environments of every Python from 3.10 to 3.13 that is here
	$(VENV)/bin/python .ci/release-check.py --record results/release/checks.json

TIERS = AUROC id/semi=tiers.auroc_id_below_semi, AUROC semi/full=tiers.auroc_semi_below_full, AUROC id/full=tiers.auroc_id_below_full
ACCURACY = accuracy=accuracy.handwritten digits
SEMI = accuracy on semi=accuracy.printed digits
TNR95 = tnr_at_tpr95_id_positive
BELOW = auroc_semi_below_full
ROWS = --row threshold --row deep-ensemble --row abnn

tables: $(VENV)/.installed-dev  ## the tables of README and docs, from the records in results/
	$(VENV)/bin/python -m research results table demo --columns "$(ACCURACY), $(TIERS), $(SEMI)" \
		--row "plain network" --row "attached network" --into docs/evidence.md --marker demo
	$(VENV)/bin/python -m research results table paper-mnist --into docs/reproduction.md --marker paper-mnist $(ROWS) \
		--columns "MNIST accuracy=accuracy.MNIST, TNR SEMEION=detection.SEMEION.$(TNR95), TNR SVHN=detection.SVHN.$(TNR95), SEMEION < CIFAR-10=pairs.SEMEION < CIFAR-10.$(BELOW), SVHN < CIFAR-10=pairs.SVHN < CIFAR-10.$(BELOW), accuracy on SEMEION=accuracy.SEMEION, accuracy on SVHN=accuracy.SVHN, errors AUROC=misclassification.MNIST.auroc"
	$(VENV)/bin/python -m research results table paper-svhn --into docs/reproduction.md --marker paper-svhn $(ROWS) \
		--columns "SVHN accuracy=accuracy.SVHN, TNR CIFAR-10=detection.CIFAR-10.$(TNR95), AUROC CIFAR-10=detection.CIFAR-10.auroc, TNR CIFAR-100=detection.CIFAR-100.$(TNR95), AUROC CIFAR-100=detection.CIFAR-100.auroc, errors AUROC=misclassification.SVHN.auroc"
	$(VENV)/bin/python -m research results table compare-digits --into docs/methods.md --marker compare-digits \
		--columns "$(ACCURACY), $(TIERS), errors AUROC=misclassification.printed digits.auroc, $(SEMI)"
	$(VENV)/bin/python -m research.triage --table --into docs/triage.md
	$(VENV)/bin/python -m research.theory --table
	$(VENV)/bin/python -m research.pretrained --table
	$(VENV)/bin/python -m research.cifar10 --table
	$(VENV)/bin/python -m research.zoo --table
	$(VENV)/bin/python -m research.worth --table
	$(VENV)/bin/python -m research.moved --table
	$(VENV)/bin/python -m research.uci --table
	$(VENV)/bin/python -m research.models --table
	$(VENV)/bin/python -m research.clinc --table
	$(VENV)/bin/python benchmarks/serve.py --table
	$(VENV)/bin/python benchmarks/cost.py --table
	$(VENV)/bin/python benchmarks/late.py --table
	$(VENV)/bin/python benchmarks/ways.py --table
	$(VENV)/bin/python benchmarks/speed.py --table
	$(VENV)/bin/python benchmarks/where.py --table
	$(VENV)/bin/python benchmarks/score.py --table
	$(VENV)/bin/python -m research reproduce page

OUTPUT ?= results

reproduce: $(VENV)/.installed-dev  ## the paper's seven tables: trains every cell that has no record yet
	@echo "Needs a GPU and the data sets of docs/data.md below \$$ABNN_DATA (now: $(or $(ABNN_DATA),~/.cache/abnn))."
	@echo "Records in OUTPUT=$(OUTPUT) are not made again; networks stay in runs/reproduce. When stopped, it goes on where it was."
	$(VENV)/bin/python -m research reproduce all --precision bf16-mixed --output "$(OUTPUT)"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: EXTRAS = torch,serve
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL)
	touch $@

$(VENV)/.installed-dev: EXTRAS = dev
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL)
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage
