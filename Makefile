# Every target names what it lacks, in one sentence, before it starts.
SHELL := /bin/bash
PROFILE ?= ci
BIN := target/$(PROFILE)
export CODEEXEC_DATA_DIR ?= $(CURDIR)/target/run
# Sandboxes have the image's programs where it was unpacked.
ifneq ($(wildcard target/sandbox-rootfs/usr),)
export CODEEXEC_SANDBOX_ROOTFS ?= $(CURDIR)/target/sandbox-rootfs
endif
export CODEEXEC_SANDBOXD ?= $(CURDIR)/target/sandboxd/x86_64-unknown-linux-gnu/sandboxd/sandboxd

.PHONY: help demo run sandbox-rootfs build cluster cluster-stop deploy undeploy crds lint test test-long bench bench-scale

help:
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile

build:
	@e2e/require rust cc disk
	@cargo build --profile $(PROFILE) -p api-server
	@sandboxd/build >/dev/null

demo: ## run code on a file, once, from start to end
	@e2e/require rust cc disk bubblewrap
	@echo "building the server (minutes the first time, seconds later)"
	@$(MAKE) --no-print-directory build
	@$(BIN)/demo

run: ## the API server on 127.0.0.1:8080 until Ctrl-C
	@e2e/require rust cc disk bubblewrap
	@$(MAKE) --no-print-directory build
	@exec $(BIN)/api-server

sandbox-rootfs: ## the libraries and tools of the sandbox image, for `make run` and `make demo`
	@e2e/deploy/rootfs

cluster: ## a real single-node Kubernetes for tests and trials
	@e2e/cluster/up

cluster-stop: ## stop it, leaving nothing behind (KEEP=1 keeps its data)
	@e2e/cluster/stop

deploy: ## images and chart into the cluster of $KUBECONFIG (default: the one of make cluster)
	@e2e/deploy/deploy

undeploy: ## remove the chart; custom resources, sandboxes and templates stay
	@e2e/deploy/undeploy

crds: ## write the chart's custom resource definitions anew
	@cargo run --quiet --profile $(PROFILE) -p crds --features crdgen --bin crdgen -- --write charts/codeexec/templates/crds

lint: ## formatting, lints, dependency rules, scripts, chart
	@e2e/test lint

test: ## everything, real cluster included
	@e2e/test

test-long: ## the HTTP tests on both runtimes, with those that take minutes
	@LONG=1 e2e/test local cluster

bench: ## the benchmarks, as a table of ratios
	@e2e/bench

bench-scale: ## thousands of sandboxes with a simulated kubelet; takes long
	@e2e/bench-scale
