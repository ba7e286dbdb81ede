# make demo and make test do all the set-up: a .venv is made if it is not there, and reused if it is.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CLASSES := .venv/spark.jsa

.PHONY: demo test tests test-cluster long docs-blocks figures lint fuzz fuzz-queries record-queries fuzz-stores picture setup java clean
.DEFAULT_GOAL := test
# Every process that a test starts would compile the package again where no bytecode may be kept.
unexport PYTHONDONTWRITEBYTECODE

setup: $(READY) java $(CLASSES)

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

java:
	@scripts/ensure-java

# Spark's classes in the form that a JVM starts with in half the time.
$(CLASSES): $(READY) | java
	@$(BIN)/python scripts/class-archive $@

demo: setup
	@SPARK_SUBMIT_OPTS="$$SPARK_SUBMIT_OPTS -XX:SharedArchiveFile=$(abspath $(CLASSES))" $(BIN)/holdfast demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# What lint finds comes first, beside the tests: it takes one core for most of a minute.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint tests

# Three processes: one has Spark and all tests that need it, one those that start programs; pure ones fill the gaps.
tests: setup
	$(BIN)/python -m pytest -n 3 --dist loadgroup

# What takes long: blocks of README and docs, a driver killed again and again, growth on a standalone cluster, most of
# the queries by Structured Streaming too, which show that the record of its answers holds. What needs hosts of its own
# is in test-cluster.
long: setup
	$(BIN)/python -m pytest -m long -v --ignore tests/cluster

# Faults of a network, on hosts in namespaces; needs root, and says so. About ten minutes.
test-cluster: setup
	$(BIN)/python -m pytest tests/cluster -m "long or not long" -v -s

# The blocks of README and docs that take long; make test runs the others. One of them: make docs-blocks PAGE=tutorial
docs-blocks: setup
	$(BIN)/python -m pytest tests/docs -m long -v $(if $(PAGE),-k $(PAGE))

# The picture in the README, from the page of a run: make picture RUN=/tmp/holdfast-demo-...
picture: $(READY)
	@test -n "$(RUN)" || { echo "name a run's folder: make picture RUN=/tmp/holdfast-demo-..." >&2; exit 2; }
	@$(BIN)/holdfast report $(RUN)
	@scripts/screenshot $(RUN)/report.html docs/pictures/demo.png

# README's table and those of docs (performance, queries, cluster, state), measured again; half an hour on a quiet machine.
# Those that take long are apart: make figures ONLY=others (PyFlink and Bytewax); scripts/figures --help names them all.
figures: setup
	$(BIN)/python scripts/figures $(if $(ONLY),--only $(ONLY))

# A night of failure schedules, with seeds that no test run uses: make fuzz COUNT=100000 FIRST=1000000
COUNT ?= 100000
FIRST ?= 1000000
fuzz: $(READY)
	$(BIN)/python -m holdfast.runtime.simulation.fuzzing --first $(FIRST) --count $(COUNT)

# Plain queries composed from a grammar, each by Structured Streaming and by Holdfast: make fuzz-queries N=200 SEED=1000
N ?= 200
SEED ?= 1000
fuzz-queries: setup
	HOLDFAST_QUERIES=$(N) HOLDFAST_FIRST=$(SEED) $(BIN)/python -m pytest tests/spark/plain/test_composed.py -q

# What Structured Streaming answers to the composed queries, written down for make test: when the grammar, their rows or
# the version of pyspark have changed.
record-queries: setup
	cd tests/spark/plain && PYTHONPATH=../.. $(abspath $(BIN))/python recorded.py

# Every file of a store changed in N ways: refused in words of ours, or the right answer: make fuzz-stores N=1000 SEED=0
# By as many processes as there are cores, or PROCESSES=1
fuzz-stores: $(READY)
	$(BIN)/python tests/runtime/malformed_stores.py --count $(N) --seed $(SEED) $(if $(PROCESSES),--processes $(PROCESSES))

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
