# Coracle. `make help` lists the targets.
#
# bin/        what we ship: coracled, containerd-shim-coracle-v1, coracle-oci, coracle, coracle-kube
# bin/tools/  third-party tools at pinned versions (hack/tools.sh)
# bin/test/   payloads and drivers of tests, demo and benchmarks
# bin/peers/  the runtimes that `make bench` compares with (hack/peers/)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Without a Go on this machine, `make deps` fetches one.
GO       ?= $(shell command -v go || echo $(CURDIR)/bin/go/bin/go)
PREFIX   ?= /usr/local
DEMO_REGISTRY_PORT ?= 5055
DEMO_API_PORT ?= 6443
BINDIR   := $(CURDIR)/bin

PKG      := github.com/coracle-project/coracle
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || true)
COMMIT   := $(shell git rev-parse HEAD 2>/dev/null || true)
DATE     := $(shell git log -1 --format=%cI 2>/dev/null || true)
LDFLAGS  := -s -w -X $(PKG)/internal/version.Version=$(VERSION) \
            -X $(PKG)/internal/version.Commit=$(COMMIT) -X $(PKG)/internal/version.Date=$(DATE)
# The cluster says which Kubernetes it speaks, to kubectl above all.
KUBELDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) \
            -X k8s.io/component-base/version.gitVersion=$(shell sed -n 's|.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' cluster/go.mod | head -1)
STATIC   := -linkmode external -extldflags -static

# What links the runtime needs libseccomp, hence cgo; all binaries are static.
CGOTAGS  := seccomp,no_grpc,netgo,osusergo
GOBUILD  := $(GO) build -trimpath -buildvcs=false
FAULTTAG := faults
UNITTAGS := seccomp,no_grpc

# Packages whose tests run under the race detector too: those that are about
# concurrency and finish quickly.
RACE     := ./pod/... ./shim/client/... ./image/... ./network/... ./snapshot/... ./cri/... ./internal/join/...

KUBERACE := ./client/... ./inproc/... ./scheduler/... ./controllers/... ./kubelet/...

export CORACLE_BIN := $(BINDIR)

.PHONY: help deps build build-faults tools testbins up down test unit lint integration critest \
        bench bench-peers bench-cluster oracle kubelet-containerd install clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what is missing to build and test (apt; needs root or sudo)
	@GO="$(GO)" hack/deps.sh

build: deps ## build all binaries into bin/
	@mkdir -p bin
	CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS)" -o bin/coracled ./cmd/coracled
	CGO_ENABLED=1 $(GOBUILD) -tags $(CGOTAGS) -ldflags '$(LDFLAGS) $(STATIC)' -o bin/containerd-shim-coracle-v1 ./cmd/containerd-shim-coracle-v1
	CGO_ENABLED=1 $(GOBUILD) -tags $(CGOTAGS) -ldflags '$(LDFLAGS) $(STATIC)' -o bin/coracle-oci ./cmd/coracle-oci
	CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS)" -o bin/coracle ./cmd/coracle
	cd cluster && CGO_ENABLED=0 $(GOBUILD) -ldflags "$(KUBELDFLAGS)" -o ../bin/coracle-kube ./cmd/coracle-kube

# The same binaries with fault points (internal/fault), for tests only.
build-faults: build
	@mkdir -p bin/faults
	CGO_ENABLED=0 $(GOBUILD) -tags $(FAULTTAG) -ldflags "$(LDFLAGS)" -o bin/faults/coracled ./cmd/coracled
	CGO_ENABLED=1 $(GOBUILD) -tags $(CGOTAGS),$(FAULTTAG) -ldflags '$(LDFLAGS) $(STATIC)' -o bin/faults/containerd-shim-coracle-v1 ./cmd/containerd-shim-coracle-v1

testbins: deps
	@mkdir -p bin/test
	CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o bin/test/ ./integration/demo/web ./integration/imagetool ./integration/bench ./integration/critest
	@for p in pause setuid; do \
	  [[ bin/test/$$p -nt integration/payload/$$p.c ]] || gcc -Os -Wall -Werror -static -s -o bin/test/$$p integration/payload/$$p.c; done

up: build testbins ## start a demo: a registry, and Kubernetes with a Deployment
	@GO="$(GO)" DEMO_REGISTRY_PORT=$(DEMO_REGISTRY_PORT) DEMO_API_PORT=$(DEMO_API_PORT) hack/demo/up.sh

down: ## stop the demo and remove all that it made
	@hack/demo/down.sh

test: lint unit ## all tests (needs root)
	@$(MAKE) --no-print-directory -j2 --output-sync=target integration critest

lint: deps ## gofumpt, go vet, staticcheck, shellcheck, import rules
	@GO="$(GO)" hack/lint.sh

unit: build ## unit tests
	CGO_ENABLED=1 $(GO) test -tags $(UNITTAGS) $$($(GO) list -tags $(UNITTAGS) ./... | grep -v /integration)
	CGO_ENABLED=1 $(GO) test -race -short -tags $(UNITTAGS),$(FAULTTAG) $(RACE)
	cd cluster && CGO_ENABLED=0 $(GO) test $$($(GO) list ./... | grep -v /integration)
	cd cluster && CGO_ENABLED=1 $(GO) test -race -short $(KUBERACE)

integration: build-faults testbins ## end-to-end tests on a real registry, coracled and crictl
	@GO="$(GO)" hack/tools.sh crictl registry cni kubectl
	CGO_ENABLED=0 $(GO) test -count=1 -timeout 10m ./integration/...
	cd cluster && CGO_ENABLED=0 $(GO) test -count=1 ./integration/...

critest: build testbins ## CRI validation tests, with the list of known failures
	@GO="$(GO)" hack/tools.sh crictl critest registry busybox
	bin/test/critest -known integration/critest/known-failing.txt $(CRITEST_FLAGS)

bench: build testbins ## benchmark against the peers that `make bench-peers` has installed
	@GO="$(GO)" hack/tools.sh crictl registry cni
	bin/test/bench $(BENCH_FLAGS)

bench-peers: deps testbins ## install containerd + runc and CRI-O + crun for `make bench`
	@GO="$(GO)" hack/tools.sh crictl registry cni
	@GO="$(GO)" hack/peers/install.sh

bench-cluster: build testbins bench-peers ## benchmark the cluster against upstream's own
	@GO="$(GO)" hack/peers/kube.sh
	cd cluster && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o ../bin/test/cluster-bench ./bench
	bin/test/bench -cluster $(BENCH_FLAGS)

oracle: build testbins ## compare the cluster with upstream's own control plane, each difference printed
	@GO="$(GO)" hack/tools.sh kubectl
	@GO="$(GO)" hack/peers/kube.sh
	cd cluster && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o ../bin/test/oracle ./oracle
	bin/test/oracle -bin bin

kubelet-containerd: build bench-peers ## the kubelet's end-to-end tests on containerd
	cd cluster && KUBELET_E2E_RUNTIME=containerd CGO_ENABLED=0 $(GO) test -count=1 ./kubelet/e2e

install: build ## install the binaries and the systemd unit (PREFIX, DESTDIR)
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 0755 bin/coracled bin/containerd-shim-coracle-v1 bin/coracle-oci bin/coracle bin/coracle-kube "$(DESTDIR)$(PREFIX)/bin/"
	install -d "$(DESTDIR)$(PREFIX)/lib/systemd/system"
	sed 's|/usr/local|$(PREFIX)|' contrib/coracled.service > "$(DESTDIR)$(PREFIX)/lib/systemd/system/coracled.service"

clean: ## remove what was built (the demo has to be down)
	rm -rf bin out
