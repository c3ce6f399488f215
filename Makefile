# nvdp: everything a fresh machine needs is Python 3.11+ (with venv), make and git.
# Targets set up what they need in .venv by themselves, from the lock files in .ci.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup setup-runtime demo test check lint types layers coverage bench campaign soak real lock proto image clean
MAKEFLAGS += --no-print-directory
unexport PYTHONDONTWRITEBYTECODE # asserts of all tests are compiled in each process otherwise, each time

BIN := .venv/bin
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --annotation-style=line \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options $(if $(UPGRADE),--upgrade)

help: ## show this list
	@while IFS= read -r line; do case "$$line" in \
		[a-z]*:*'## '*) printf '  make %-10s %s\n' "$${line%%:*}" "$${line##*## }" ;; \
	esac; done < $(firstword $(MAKEFILE_LIST))

setup: ## make .venv with everything that tests and development need
	@.ci/setup dev

setup-runtime:
	@.ci/setup runtime

demo: setup-runtime ## the main job on a simulated node: no GPU, no cluster
	@$(BIN)/nvdp simulate

check: lint types layers test ## all that must pass: lint, types, layers, tests

lint: setup ## style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## strict types
	@$(BIN)/mypy nvdp

layers: setup ## imports point downward only
	@$(BIN)/lint-imports

test: setup ## the tests, on five processes: much of their time is waiting
	@$(BIN)/pytest -n 5 --dist worksteal

coverage: setup ## the tests again, with the branches that none of them takes
	@$(BIN)/pytest -n 3 --dist worksteal --cov --cov-report=term-missing:skip-covered

bench: setup ## measure start, restart, edit, allocation, memory; a table and JSON
	@$(BIN)/python -m tests.bench

campaign: setup ## the slow campaigns in full, all of the daemon's tests with a kubelet 1.37 and a slow one, all faults on a compiled library
	@NVDP_KUBELET=1.37 $(BIN)/pytest -n 3 --dist worksteal tests/daemon
	@NVDP_LIST_DELAY=0.1 $(BIN)/pytest -n 3 --dist worksteal tests/daemon
	@NVDP_LIBRARY=compiled $(BIN)/pytest -n 3 --dist worksteal tests/daemon/test_faults.py tests/daemon/test_health.py \
		tests/daemon/test_driver.py
	@.ci/containerd || echo "campaign: no containers are run, see above" >&2
	@NVDP_CAMPAIGN=full $(BIN)/pytest -m campaign --timeout 3600

soak: export NVDP_SOAK_STEPS ?= 100000
soak: setup ## 100,000 random faults and more, some hours (NVDP_SOAK_STEPS: how many, NVDP_SOAK_SEED: from which seed on)
	@$(BIN)/pytest -n 4 --dist worksteal --maxfail 3 tests/daemon/test_fault_campaign.py

real: setup ## nvdp with a real API server, kubelet and containerd; compiles Kubernetes first, for a quarter of an hour, once
	@.ci/containerd
	@.ci/kubernetes
	@NVDP_CAMPAIGN=full NVDP_KUBERNETES=build/kubernetes $(BIN)/pytest -n 2 --dist worksteal tests/real

lock: setup ## renew the lock files from pyproject.toml (UPGRADE=1: newest versions)
	@$(LOCK) -o .ci/runtime.lock pyproject.toml
	@$(LOCK) -o .ci/build.lock --only-build-deps --build-deps-for wheel pyproject.toml
	@$(LOCK) -o .ci/dev.lock -c .ci/runtime.lock -c .ci/build.lock --extra dev pyproject.toml

proto: setup ## generate nvdp/kubelet/proto from api/*.proto
	@$(BIN)/python .ci/generate_proto.py

image: ## build the container image nvdp:VERSION
	@engine=$$(command -v docker || command -v podman) || { \
		echo "image: neither docker nor podman is installed; install one of them" >&2; exit 1; }; \
	"$$engine" build --tag "nvdp:$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' nvdp/__init__.py)" \
		--build-arg "REVISION=$$(git rev-parse --short=7 HEAD 2>/dev/null)" .

clean: ## remove .venv and everything generated
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	@find .ci nvdp tests -name __pycache__ -prune -exec rm -rf {} +
