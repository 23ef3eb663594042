# Everything begins with two commands: make demo, make test. Both set up what is missing first.
PYTHON_BIN := .venv/bin
WITH_JAVA_AND_MAVEN := $(PYTHON_BIN)/python scripts/with_tools.py java maven --
WITH_COMPILER := $(PYTHON_BIN)/python scripts/with_tools.py compiler --
WITH_GO := $(PYTHON_BIN)/python scripts/with_tools.py go --
WITH_IMAGE_TOOLS := $(PYTHON_BIN)/python scripts/with_tools.py buildah --
WITH_BENCH_TOOLS := $(PYTHON_BIN)/python scripts/with_tools.py java maven compiler go --
WITH_ALL_TOOLS := $(PYTHON_BIN)/python scripts/with_tools.py java maven chromium compiler --
DEMO_FLAGS := $(if $(filter-out 0 no false,$(KEEP)),--keep)
PYTEST_FLAGS ?=
# Six files of tests at a time, also on two cores: most of the time they wait for processes they have started.
PYTEST_AT_ONCE ?= 6
DISTRIBUTED = -n $(PYTEST_AT_ONCE) --dist loadfile --no-loadscope-reorder
# One order for everybody: that of the files. `make orders` looks for others in which a test fails.
IN_ORDER := -p no:randomly
SEEDS ?= $(shell seq 30)
# Releases of Apache Kafka with which the mirror and the clients work as well, and tests that show it.
OLDER_RELEASES := 3.9.2 4.1.0
WITH_OLDER_KAFKA := tests/interop/test_mirror_kafka.py tests/interop/test_impact_outages.py \
	tests/interop/test_client_contract.py::test_clients_work_with_kafka_and_send_no_config_request

# Tests and demo start hundreds of Python processes. Without bytecode each compiles all of klamm, for 0.3 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

# What the first set-up installs at the same time as the Python packages. The commands below check it again.
demo: TOOLS := java maven
test orders: TOOLS := java maven chromium compiler
soak: TOOLS := java maven go
kafka-release: TOOLS := java maven
bench bench-quick: TOOLS := java maven compiler go
wheel: TOOLS := compiler
images: TOOLS := buildah

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long run-tests test-fast check check-types check-style check-tests check-imports check-docs check-packages check-workflows prepare-tests sbom docs format wheel images bench bench-quick soak orders kafka-release generate \
	lock clean

help:
	@echo 'make demo         set up, then show the whole of klamm on real data (KEEP=1 leaves the brokers running)'
	@echo 'make test         set up, then run all checks and all tests'
	@echo 'make test-long    the same with the long tests, which make test leaves out: before a release and every night'
	@echo 'make test-fast    the unit tests that start no process: for the inner loop, 45 s'
	@echo 'make setup        only set up: .venv/bin/klamm'
	@echo 'make check        mypy --strict, ruff, imports of the tests, import contracts, links of the docs, packages, workflows'
	@echo 'make format       let ruff mend and format what it can'
	@echo 'make docs         build the site of these pages in build/site'
	@echo 'make wheel        build dist/: a compiled wheel, a pure wheel and the sdist; install and try each'
	@echo 'make sbom         write the packages that the wheel brings as CycloneDX into build/klamm.cdx.json'
	@echo 'make images       build the images of the broker and the mirror with buildah, and use them (as root)'
	@echo 'make bench        measure against Apache Kafka and MirrorMaker 2; make bench-quick: the same, shorter'
	@echo 'make soak         the long tests: many crashes, many random examples, and make orders'
	@echo 'make orders       all tests in 30 random orders, half of them beside load; each pair of files that share something both ways; threads that begin late, and those of others; time slices that are used up; processes that stand still'
	@echo 'make kafka-release RELEASE=4.5.0   compare a release of Apache Kafka with the recorded answers'
	@echo 'make generate     write the wire messages from their schemas, and docs/api from the docstrings'
	@echo 'make lock         pin the dependencies again (LOCK_FLAGS=--upgrade takes the newest)'
	@echo 'make clean        remove everything that was made here'

setup:
	@TOOLS='$(TOOLS)' sh scripts/setup.sh

demo: setup
	@$(WITH_JAVA_AND_MAVEN) python -m examples.demo $(DEMO_FLAGS)

# The tests begin when the quick checks, the longest of them first, have passed. The others take a minute beside them.
QUICK_CHECKS := check-tests check-style check-imports
OTHER_CHECKS := check-types check-docs check-packages check-workflows

check: setup
	@$(MAKE) --no-print-directory --jobs=2 $(OTHER_CHECKS) $(QUICK_CHECKS)

check-types:
	$(PYTHON_BIN)/mypy

check-style:
	$(PYTHON_BIN)/ruff check .
	$(PYTHON_BIN)/ruff format --check .
	$(PYTHON_BIN)/python scripts/check_source.py

# It also writes the bytecode of the tests and of all that they import. In a fresh clone, each of pytest's workers would
# otherwise compile the latter: 7 s of CPU time.
check-tests:
	@mkdir -p .cache && $(PYTHON_BIN)/pytest --collect-only -qq >.cache/tests || { cat .cache/tests; exit 1; }

check-imports:
	$(PYTHON_BIN)/lint-imports --no-cache
	$(PYTHON_BIN)/lint-imports --no-cache --config .importlinter-acyclic

check-docs:
	@mkdir -p .cache && $(PYTHON_BIN)/python scripts/site.py >.cache/site 2>&1 || { cat .cache/site; exit 1; }

check-packages:
	$(PYTHON_BIN)/python scripts/wheel.py --only pure sdist --check -- build/check

check-workflows:
	$(PYTHON_BIN)/zizmor --quiet --offline .github action.yml examples/gitops/workflow.yaml

test: setup
	@$(MAKE) --no-print-directory --jobs=3 run-tests $(OTHER_CHECKS)

prepare-tests:
	@$(WITH_JAVA_AND_MAVEN) python -m tests.support.prepare

run-tests: prepare-tests $(QUICK_CHECKS)
	$(WITH_ALL_TOOLS) pytest $(DISTRIBUTED) $(IN_ORDER) $(PYTEST_FLAGS)

test-long:
	@$(MAKE) --no-print-directory test PYTEST_FLAGS='--long $(PYTEST_FLAGS)'

test-fast: setup
	$(PYTHON_BIN)/pytest -q $(DISTRIBUTED) -m 'not process' $(IN_ORDER) $(PYTEST_FLAGS) tests/unit

format: setup
	$(PYTHON_BIN)/ruff check --fix .
	$(PYTHON_BIN)/ruff format .

docs: setup
	$(PYTHON_BIN)/python scripts/site.py

wheel: setup
	@$(WITH_COMPILER) python scripts/wheel.py --check --try

sbom: setup
	$(PYTHON_BIN)/python scripts/wheel.py --only pure --sbom build/klamm.cdx.json -- build/sbom

images: setup
	@$(WITH_IMAGE_TOOLS) python scripts/try_images.py

bench: setup
	$(WITH_BENCH_TOOLS) python -m benchmarks

bench-quick: setup
	$(WITH_BENCH_TOOLS) python -m benchmarks --quick

soak: setup
	KLAMM_SOAK=1 $(WITH_JAVA_AND_MAVEN) pytest $(PYTEST_FLAGS)
	for release in $(OLDER_RELEASES); do \
		$(WITH_JAVA_AND_MAVEN) pytest --long $(PYTEST_FLAGS) --kafka-release $$release $(WITH_OLDER_KAFKA) || exit; done
	$(WITH_GO) python -m scripts.client_suites
	@$(MAKE) --no-print-directory orders

# Even seeds run beside other load. The last two runs have the files that share Kafka, Spark or a browser in one process, in
# an order and in its reverse: so each pair of them runs both ways. Then all tests run with threads that begin late,
# and beside a thread of another library.
orders: setup
	@failed=; for seed in $(SEEDS); do \
		$(WITH_ALL_TOOLS) $$(test $$((seed % 2)) = 1 || echo python scripts/beside_load.py) \
			pytest -q $(DISTRIBUTED) --long --randomly-seed=$$seed $(PYTEST_FLAGS) || failed="$$failed $$seed"; done; \
	for reverse in '' ' --reverse'; do \
		$(WITH_ALL_TOOLS) pytest -q --long --sharing --randomly-seed=$(firstword $(SEEDS)) $$reverse $(PYTEST_FLAGS) || \
		failed="$$failed --sharing:$(firstword $(SEEDS))$$reverse"; done; \
	for plugin in late_threads other_threads short_slices paused_processes; do \
		$(WITH_ALL_TOOLS) pytest -q $(DISTRIBUTED) -p tests.support.$$plugin $(PYTEST_FLAGS) || \
		failed="$$failed $$plugin"; done; \
	test -z "$$failed" || { echo "Tests failed with these seeds:$$failed"; exit 1; }

kafka-release: setup
	$(WITH_JAVA_AND_MAVEN) python -m scripts.kafka_release $(RELEASE) $(if $(CASES),--cases '$(CASES)')

generate: setup
	$(PYTHON_BIN)/python scripts/generate_messages.py
	$(PYTHON_BIN)/python scripts/api_reference.py

lock: setup
	sh scripts/lock.sh $(LOCK_FLAGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist \
		spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
