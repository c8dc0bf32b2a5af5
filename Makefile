# Coracle. `make help` lists the targets.
#
# bin/        what we ship: coracled, containerd-shim-coracle-v1, coracle-lazy, coracle-oci (and its companion), coracle, coracle-kube,
#             coracle-bgp
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
DEMO_SERVICE_CIDR ?= 10.96.0.0/16
BINDIR   := $(CURDIR)/bin

PKG      := github.com/coracle-project/coracle
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || true)
COMMIT   := $(shell git rev-parse HEAD 2>/dev/null || true)
DATE     := $(shell git log -1 --format=%cI 2>/dev/null || true)
# Functions at multiples of 16 bytes instead of 32: coracled has 0.2 MB less.
LDFLAGS  := -s -w -funcalign=16 -X $(PKG)/internal/version.Version=$(VERSION) \
            -X $(PKG)/internal/version.Commit=$(COMMIT) -X $(PKG)/internal/version.Date=$(DATE)
# The cluster says which Kubernetes it speaks, to kubectl above all.
KUBELDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) \
            -X k8s.io/component-base/version.gitVersion=$(shell sed -n 's|.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' cluster/go.mod | head -1)
# RELINK=DIRECTORY keeps what the programs with C libraries are linked from. Without a build id, what is linked from it is
# the program again.
STATIC   := -linkmode external -extldflags -static$(if $(RELINK), -extld=$(CURDIR)/packaging/extld.sh -buildid=)
# Where programs are built.
OUT      ?= bin

# One set of flags for everything, so that a package is compiled once for programs, tests and
# linters: no paths of this machine, no cgo unless a target asks for it, and one list of tags.
#   seccomp                   libseccomp in programs that link the runtime (with cgo)
#   no_grpc                   the shim has no gRPC
#   netgo, osusergo           the same package net with and without cgo: static binaries
#   grpcnotrace               gRPC without its HTML pages. Their templates call methods by name, so
#                             the linker would keep every exported method: 6 MB of coracled.
#   nri_no_wasm               coracled without a WebAssembly interpreter for NRI plugins: 2.6 MB
TAGS     := seccomp,no_grpc,netgo,osusergo,grpcnotrace,nri_no_wasm
FAULTTAGS := $(TAGS),faults
# The other modules (cluster/, image/build/): some of their packages need containerd's API with gRPC.
#   fieldsv1string            objects of the Kubernetes API share the text of equal managed fields
OTHERTAGS := netgo,osusergo,grpcnotrace,fieldsv1string
# TESTFLAGS are for all tests: -v names each.
export GOFLAGS := -trimpath -buildvcs=false -tags=$(TAGS) $(TESTFLAGS)
export CGO_ENABLED := 0
OTHER    := GOFLAGS='-trimpath -buildvcs=false -tags=$(OTHERTAGS) $(TESTFLAGS)'
GOBUILD  := $(GO) build $(BUILDFLAGS)
# lint runs vet. Without it, `go test` and `go test -c` share their compiled packages.
GOTEST   := $(GO) test -vet=off -timeout 20m

# The packages that need cgo. Other packages are tested with cgo only under the race detector.
CGOPKGS  := ./cmd/containerd-shim-coracle-v1 ./cmd/coracle-oci ./cmd/coracle-oci/cli ./cmd/coracle-oci/cli/withlc \
            ./runtime/engine ./runtime/lc ./runtime/seccomp ./shim/keeper ./shim/podinit

# The programs that are built without C, and what they are made of: go vet looks at them for arm64, too. The packages that
# need C would need arm64's C libraries.
NOCPKGS  := ./cmd/coracle/... ./cmd/coracled/... ./cmd/coracle-lazy/... ./cri/... ./image/... ./internal/... ./network/... \
            ./pod/... ./runtime/plan/... ./runtime/zygote/... ./shim/client/... ./snapshot/...

# Packages whose tests run under the race detector, and, except SAMPLED, only there: packages about
# concurrency that finish quickly.
RACE     := ./pod/... ./shim/client/... ./image/... ./network/... ./snapshot/... ./cri/... ./internal/join/... ./internal/batch/... ./internal/flight/...

# Packages of RACE that run only a sample under -short. All their tests run without the race detector.
SAMPLED  := ./cri ./network

KUBERACE := ./client/... ./inproc/... ./scheduler/... ./controllers/... ./kubelet/... ./dns/... ./nodeaddr/...

# The shards of integration/ run in parallel, in their own namespaces.
SHARDS   := 4
# Prerequisites of a part: none if `make test` has built them, or each part would build them again.
needs     = $(if $(PREPARED),,$(1))

# The parts of `make test`, in the order in which they start.
PARTS    := unit-race $(foreach k,$(shell seq $(SHARDS)),integration-$(k)) critest cluster-integration \
            unit-cgo unit cluster-race cluster-unit lint integration-oci integration-kube integration-rest

export CORACLE_BIN := $(BINDIR)
# Where tests write what they cannot test on this machine; `make test` prints it.
export CORACLE_UNTESTED := $(CURDIR)/out/untested

# What we ship.
PROGRAMS := coracled containerd-shim-coracle-v1 coracle-oci coracle-oci-libcontainer coracle coracle-lazy coracle-kube coracle-bgp

.PHONY: help deps generate build builder build-faults tools testbins up down test unit lint integration critest \
        stale-coracle-kube tools shards parts unit-cgo unit-race cluster-unit cluster-race cluster-integration check-all crash-matrix \
        fuzz test-scale test-oci test-image test-vm bench bench-image bench-oci bench-peers bench-cluster bench-scale bench-proxy oracle test-kubelet kubelet-containerd test-conformance test-policy test-chaos test-nodes test-upgrade test-rolling test-upstream test-database test-helm test-bgp test-ha test-cluster-page test-csi test-csi-mock install deb binaries $(PROGRAMS:%=binary-%) demo-images dist release reproduce status lint-arm64 test-bats test-deb-vm clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what is missing to build and test (apt; needs root or sudo)
	@GO="$(GO)" hack/deps.sh

generate: ## make the generated files of the daemon's and the shim's own services again (needs protoc)
	@mkdir -p bin/tools/protoc
	cd packaging/tools && GOBIN=$(BINDIR)/tools/protoc $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	GOBIN=$(BINDIR)/tools/protoc $(GO) install github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc
	PATH=$(BINDIR)/tools/protoc:$$PATH protoc -I . --go_out=. --go_opt=paths=source_relative \
	  --go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative shim/api/shim.proto
	PATH=$(BINDIR)/tools/protoc:$$PATH protoc -I . --go_out=. --go_opt=paths=source_relative \
	  --go-grpc_out=. --go-grpc_opt=paths=source_relative image/api/v1/images.proto shim/nodeapi/v1/node.proto

build: deps binaries ## build all binaries into bin/

# The binaries in OUT. GOARCH, CC and PKG_CONFIG_* choose another architecture.
binaries: $(PROGRAMS:%=binary-%)

binary-coracled binary-coracle-oci binary-coracle binary-coracle-lazy: binary-%:
	@mkdir -p $(OUT)
	$(GOBUILD) -ldflags "$(LDFLAGS)" -o $(OUT)/$* ./cmd/$*

binary-containerd-shim-coracle-v1 binary-coracle-oci-libcontainer: binary-%:
	@mkdir -p $(OUT)
	RELINK=$(RELINK)/$* CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS) $(STATIC)' -o $(OUT)/$* ./cmd/$*

binary-coracle-kube:
	@mkdir -p $(OUT)
	cd cluster && $(OTHER) $(GOBUILD) -ldflags "$(KUBELDFLAGS)" -o $(abspath $(OUT))/coracle-kube ./cmd/coracle-kube

binary-coracle-bgp:
	@mkdir -p $(OUT)
	cd cluster && $(OTHER) $(GOBUILD) -ldflags "-s -w -funcalign=1 -X main.version=$(VERSION) -X main.commit=$(COMMIT)" -o $(abspath $(OUT))/coracle-bgp ./cmd/coracle-bgp

# How many packages binary-coracle-kube would compile.
stale-coracle-kube:
	@cd cluster && $(OTHER) $(GO) list -deps -f '{{if .Stale}}stale{{end}}' ./cmd/coracle-kube | grep -c stale || true

builder: ## build coracle-build and buildkitd into bin/, for `coracle image build`
	@mkdir -p bin
	cd image/build && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../../bin/coracle-build ./cmd/coracle-build
	cd image/build && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../../bin/coracle-buildkitd github.com/moby/buildkit/cmd/buildkitd

# The same binaries with fault points (internal/fault), for tests only.
build-faults: build
	@mkdir -p bin/faults
	$(GOBUILD) -tags $(FAULTTAGS) -ldflags "$(LDFLAGS)" -o bin/faults/coracled ./cmd/coracled
	cp bin/coracle-lazy bin/faults/
	CGO_ENABLED=1 $(GOBUILD) -tags $(FAULTTAGS) -ldflags '$(LDFLAGS) $(STATIC)' -o bin/faults/containerd-shim-coracle-v1 ./cmd/containerd-shim-coracle-v1

testbins: deps
	@mkdir -p bin/test
	$(GOBUILD) -ldflags '-s -w' -o bin/test/ ./integration/demo/web ./integration/imagetool ./integration/bench ./integration/critest ./integration/nriplugin
	$(GOBUILD) -ldflags '-s -w' -o bin/test/plugin/ ./network/testdata/fakeplugin
	@for p in attack pause setuid; do \
	  [[ bin/test/$$p -nt integration/payload/$$p.c ]] || gcc -Os -Wall -Werror -static -s -o bin/test/$$p integration/payload/$$p.c; done

# The programs that the demo runs, and no others. Each is a step of hack/demo/build.sh.
demo-images:
	@mkdir -p bin/test
	$(GOBUILD) -ldflags '-s -w' -o bin/test/ ./integration/demo/web ./integration/imagetool

up: deps ## start a demo: a registry, and Kubernetes with a Deployment and a Service; DEMO_FLAGS are passed to coracle up
	@GO="$(GO)" hack/demo/build.sh
	@GO="$(GO)" DEMO_REGISTRY_PORT=$(DEMO_REGISTRY_PORT) DEMO_API_PORT=$(DEMO_API_PORT) \
	  DEMO_SERVICE_CIDR=$(DEMO_SERVICE_CIDR) hack/demo/up.sh $(DEMO_FLAGS)

down: ## stop the demo and remove all that it made
	@hack/demo/down.sh

test: ## all tests (needs root): the parts of `make parts`, and how long each took
	@rm -rf out/times out/untested out/parts; mkdir -p out
	@hack/timed.sh build $(MAKE) --no-print-directory build-faults testbins tools shards
	@$(MAKE) --no-print-directory -j4 -k --output-sync=target $(addprefix part-,$(PARTS)) || true
	@hack/timed.sh --report

check-all: ## all targets of hack/status/targets.txt, or TARGETS; writes docs/status.md (needs root; hours)
	@$(GO) run ./hack/status run $(TARGETS)

status: ## whether each target has passed with the files of this commit
	@$(GO) run ./hack/status check

parts: ## the parts of `make test`; each is a target
	@printf '%s\n' $(PARTS)

part-%:
	@hack/timed.sh $* $(MAKE) --no-print-directory PREPARED=1 $*

crash-matrix: build-faults testbins tools ## every fault at every fault point of every operation; writes docs/crash-matrix.md (needs root)
	hack/oci/build.sh criu
	PATH=$(BINDIR)/oci:$$PATH $(GO) test -vet=off -count=1 -timeout 60m ./integration/crashmatrix -run TestFaultPoints -args -page=$(CURDIR)/docs/crash-matrix.md

lint: $(call needs,deps) ## gofumpt, go vet, staticcheck, shellcheck, import rules
	@GO="$(GO)" NOCPKGS="$(NOCPKGS)" nice hack/lint.sh

# The other architecture's types and system calls.
lint-arm64: $(call needs,deps) ## go vet of everything without C for GOARCH=arm64
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet $(NOCPKGS)
	cd image/build && GOARCH=arm64 $(OTHER) $(GO) vet ./...
	cd cluster && GOARCH=arm64 $(OTHER) $(GO) vet ./...

# The packages of one list are compiled and tested side by side; three are modules of their own.
unit: $(call needs,build tools) ## unit tests, but for those of unit-cgo and unit-race
	$(GOTEST) $(PKG)/internal/{conntrack,crilog,programpages} $$(CGO_ENABLED=1 $(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | grep -v /integration | grep -vxF -f <(CGO_ENABLED=1 $(GO) list $(CGOPKGS) $(RACE))) $(SAMPLED)
	cd packaging/tools && $(OTHER) $(GOTEST) ./...

unit-cgo: $(call needs,build tools) ## unit tests of the packages that need cgo
	CGO_ENABLED=1 $(GOTEST) $(CGOPKGS)

unit-race: $(call needs,build-faults tools) ## unit tests under the race detector
	CGO_ENABLED=1 $(GOTEST) -race -short -tags $(FAULTTAGS) $(RACE)

cluster-unit: $(call needs,build) ## unit tests of the cluster, except those of cluster-race
	cd cluster && $(OTHER) $(GOTEST) github.com/google/go-cmp/cmp $$($(GO) list ./... | grep -v /integration | grep -vxF -f <($(GO) list $(KUBERACE)))

cluster-race: $(call needs,build) ## unit tests of the cluster under the race detector
	cd cluster && $(OTHER) CGO_ENABLED=1 $(GOTEST) -race $(KUBERACE)

tools: testbins ## third-party tools that tests need
	@GO="$(GO)" hack/tools.sh runc-shim cni crictl critest registry kubectl busybox
	@GO="$(GO)" hack/previous.sh

# The test binaries of integration/, and their dependencies: shards have no network to fetch them.
shards: deps
	@mkdir -p bin/test
	$(GOTEST) -c -o bin/test/integration.test ./integration
	cd packaging/tools && $(OTHER) $(GO) build -o /dev/null ./deb && $(OTHER) $(GO) build -o /dev/null ./bom

integration: $(foreach k,$(shell seq $(SHARDS)),integration-$(k)) integration-oci integration-kube integration-rest cluster-integration ## end-to-end tests on a real registry, coracled and crictl

integration-%: $(call needs,build-faults testbins tools shards)
	@cd integration && ../hack/shard.sh $*/$(SHARDS) ../bin/test/integration.test weights.txt

integration-oci: $(call needs,build-faults testbins tools)
	CGO_ENABLED=1 $(GOTEST) -count=1 ./integration/oci

integration-kube: $(call needs,build-faults testbins tools)
	$(GOTEST) -count=1 ./integration/kube

integration-rest: $(call needs,build-faults testbins tools)
	$(GOTEST) -count=1 $$($(GO) list ./integration/... | grep -vE '/integration(/oci.*|/kube)?$$')

cluster-integration: $(call needs,build-faults testbins tools)
	cd cluster && $(OTHER) $(GOTEST) -count=1 ./integration/...

test-chaos: $(call needs,build-faults testbins tools) ## kill the cluster process and coracled at random under traffic; CHAOS_FLAGS="-chaos 10m -seed 7" chooses
	cd cluster && $(OTHER) $(GO) test -vet=off -count=1 -v -timeout 24h ./integration -run TestChaos -args -chaos 30m $(CHAOS_FLAGS)

# NODES_RUN, a regular expression, chooses tests.
test-nodes: $(call needs,build testbins tools) ## three nodes on this machine: paths, Services and policies between them, links that delay, lose or are cut; kills of up and down; a network plugin (needs root; long)
	@GO="$(GO)" hack/tools.sh cni flannel
	cd cluster && $(OTHER) $(GO) test -tags $(OTHERTAGS),nodes -vet=off -count=1 -timeout 30m ./integration/nodes -run '$(or $(NODES_RUN),.)'

test-upgrade: $(call needs,build-faults testbins tools) ## coracle upgrade under requests: from the previous release's shim, killed, to programs that do not work (needs root)
	$(GO) test -vet=off -count=1 -v -timeout 20m -tags $(TAGS),upgrade ./integration/kube -run TestUpgrade

test-rolling: build testbins ## coracle upgrade of three control-plane nodes and one without, from an earlier commit, one after the other under requests (needs root)
	@GO="$(GO)" hack/tools.sh cni crictl kubectl registry
	@GO="$(GO)" hack/previous.sh cluster
	cd cluster && $(OTHER) $(GO) test -vet=off -count=1 -v -timeout 30m -tags $(OTHERTAGS),ha,skew ./integration/controlplanes -run TestRollingUpgrade

# KUBELET_VERSIONS are the releases of upstream's kubelet besides that of cluster/.
test-upstream: KUBELET_VERSIONS := v1.35.8 v1.34.10 v1.33.13
test-upstream: build testbins ## upstream's kubelets of four minor versions and its kube-proxy join our cluster, and our node joins upstream's control plane (needs root; builds long)
	@GO="$(GO)" hack/tools.sh cni crictl kubectl registry
	@GO="$(GO)" hack/peers/kube.sh
	@GO="$(GO)" hack/peers/kubeproxy.sh
	@for v in $(KUBELET_VERSIONS); do GO="$(GO)" hack/peers/kubelet.sh $$v; done
	cd cluster && KUBELET_VERSIONS="$(KUBELET_VERSIONS)" $(OTHER) $(GO) test -vet=off -count=1 -v -timeout 30m -tags $(OTHERTAGS),ha,skew ./integration/controlplanes -run TestUpstream

test-database: build testbins ## kill PostgreSQL, its pod and all programs below it at random for DURATION (2m): no committed row is lost (needs root)
	@hack/database/deps.sh
	@GO="$(GO)" hack/tools.sh cni crictl kubectl registry
	$(GO) test -vet=off -count=1 -v -timeout 24h -tags $(TAGS),database ./integration/kube -run TestDatabase -args -database $(or $(DURATION),2m) $(DATABASE_FLAGS)

test-ha: build testbins ## three control-plane nodes, TRIALS (6) times all processes of one, then each kind of process of each, killed under load: the API answers within 2 s, what clients saw is linearizable (needs root)
	cd cluster && $(OTHER) $(GO) test -vet=off -count=1 -v -timeout 2h -tags $(OTHERTAGS),ha ./integration/controlplanes -skip TestClusterPage -args -trials $(or $(TRIALS),6)

test-cluster-page: build testbins ## the commands of docs/cluster.md, typed on three machines that are namespaces of this one (needs root)
	cd cluster && $(OTHER) $(GO) test -vet=off -count=1 -v -timeout 30m -tags $(OTHERTAGS),ha ./integration/controlplanes -run TestClusterPage

test-bgp: build ## coracle-bgp and a router (BIRD) in network namespaces: routes of both families, withdrawal, kills, refused sessions (needs root)
	@hack/bgp/deps.sh
	cd cluster && $(OTHER) $(GO) test -vet=off -count=1 -timeout 5m -tags $(OTHERTAGS),bgp ./integration/bgp ./integration/nodes -run 'TestRoutes|TestRefusedSessions|TestTooManyRoutes|TestBGP'

test-helm: build testbins ## Helm 4 installs, upgrades, rolls back and removes a chart with one of each kind (needs root)
	@GO="$(GO)" hack/tools.sh cni crictl helm kubectl registry
	$(GO) test -vet=off -count=1 -timeout 20m -tags $(TAGS),helm ./integration/kube -run TestHelm

# CSI_RUN, a regular expression, chooses tests.
test-csi: build testbins ## a CSI driver with upstream's sidecars on the cluster, its calls and programs killed one by one; csi-sanity (needs root; long)
	@GO="$(GO)" hack/tools.sh cni crictl kubectl registry
	@hack/csi/deps.sh
	@GO="$(GO)" hack/csi/build.sh
	$(GO) test -vet=off -count=1 -timeout 2h -tags $(TAGS),csi ./integration/kube -run '$(or $(CSI_RUN),TestCSI)'

critest: $(call needs,build testbins tools) ## CRI validation tests
	bin/test/critest $(CRITEST_FLAGS)

test-bats: OCI_TESTS := bats
test-bats: test-oci ## runc's own tests on coracle-oci and on runc (needs root; half an hour)

test-oci: deps ## coracle-oci compared with runc: scripts, runtime-tools' validation, podman (needs root)
	@mkdir -p bin/oci
	$(GOBUILD) -ldflags "$(LDFLAGS)" -o bin/oci/coracle-oci ./cmd/coracle-oci
	CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS) $(STATIC)' -o bin/oci/coracle-oci-libcontainer ./cmd/coracle-oci-libcontainer
	@GO="$(GO)" hack/oci/test.sh $(OCI_TESTS)

test-image: build builder testbins ## image build, and archives to and from podman, docker and skopeo (needs root)
	@GO="$(GO)" hack/tools.sh crictl registry
	@hack/image/deps.sh
	cd image/build && $(OTHER) $(GO) test ./...
	$(GO) test -count=1 -tags image ./integration -run TestImageTools

test-vm: deps ## tests in a virtual machine: the runtime, CRI validation (VM_RUN, VM_PARTS, see hack/oci/vm.sh)
	@GO="$(GO)" hack/oci/vm.sh $(VM_PARTS)

bench: build testbins ## benchmark against the peers that `make bench-peers` has installed
	@GO="$(GO)" hack/tools.sh crictl registry cni
	bin/test/bench $(BENCH_FLAGS)

bench-image: build testbins bench-peers ## benchmark pulling and unpacking images against the peers
	bin/test/bench -images $(BENCH_FLAGS)

bench-oci: deps ## benchmark one container: coracle-oci against crun and runc, the engine against libcontainer
	@mkdir -p bin/test
	$(GOBUILD) -ldflags "$(LDFLAGS)" -o bin/coracle-oci ./cmd/coracle-oci
	$(GOBUILD) -ldflags '-s -w' -o bin/test/ ./integration/bench
	CGO_ENABLED=1 $(GOBUILD) -ldflags '-s -w $(STATIC)' -o bin/test/ocibench ./integration/ocibench
	@GO="$(GO)" hack/peers/install.sh
	bin/test/bench -oci -md docs/benchmarks.md $(BENCH_FLAGS)

bench-peers: deps testbins ## install containerd + runc and CRI-O + crun for `make bench`
	@GO="$(GO)" hack/tools.sh crictl registry cni
	@GO="$(GO)" hack/peers/install.sh

bench-cluster: build testbins bench-peers ## benchmark the cluster against upstream's own
	@GO="$(GO)" hack/peers/kube.sh
	cd cluster && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../bin/test/cluster-bench ./bench
	bin/test/bench -cluster $(BENCH_FLAGS)

bench-scale: build testbins bench-peers ## benchmark the cluster against upstream's own with 5,000 simulated nodes and 100,000 pods (long)
	@GO="$(GO)" hack/peers/kube.sh
	cd cluster && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../bin/test/cluster-bench ./bench
	bin/test/bench -scale $(BENCH_FLAGS)

bench-proxy: ## benchmark the Service proxy against kube-proxy: rules, connections, a proxy at rest; needs root and nft
	cd cluster && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../bin/test/proxy-bench ./bench/proxy
	bin/test/proxy-bench $(BENCH_FLAGS)

oracle: build testbins ## compare the cluster with upstream's own control plane, each difference printed
	@GO="$(GO)" hack/tools.sh kubectl
	@GO="$(GO)" hack/peers/kube.sh
	cd cluster && $(OTHER) $(GOBUILD) -ldflags '-s -w' -o ../bin/test/oracle ./oracle
	bin/test/oracle -bin bin

fuzz: deps ## fuzz all functions for FUZZ_SECONDS in all; inputs are kept in testdata/fuzz (some need root)
	@GO="$(GO)" hack/fuzz.sh $(or $(FUZZ_SECONDS),600) $(FUZZ)

test-scale: build-faults testbins tools ## 2,000 pods on one node start, are listed and stop (needs root)
	$(GOTEST) -count=1 -tags scale ./integration -run TestTwoThousandPods

# KUBELET_VERSION=v1.34.10 takes the kubelet of that release; with KUBELET_FLAGS='-run TestKubeletStaticPods' it runs
# what docs/cri-conformance.md tells of older ones.
test-kubelet: build-faults testbins ## upstream's kubelet on coracled: features, an API server, 1,000 pods without a leak (needs root; long)
	@GO="$(GO)" hack/tools.sh crictl registry kubectl
	@GO="$(GO)" hack/peers/$(if $(KUBELET_VERSION),kubelet.sh $(KUBELET_VERSION),kube.sh kubelet)
	KUBELET_VERSION=$(KUBELET_VERSION) $(GO) test -count=1 -timeout 60m -tags kubelet ./integration -run TestKubelet $(KUBELET_FLAGS)

kubelet-containerd: build bench-peers ## the kubelet's end-to-end tests on containerd
	cd cluster && $(OTHER) KUBELET_E2E_RUNTIME=containerd $(GO) test -count=1 ./kubelet/e2e

# FOCUS, a regular expression of specs' names, runs others than those that docs/conformance.md lists as passed on that many
# nodes.
test-conformance: build testbins ## Kubernetes' conformance suite on a cluster of NODES (1 or 2) nodes; writes docs/conformance.md (needs root; long)
	@hack/conformance/deps.sh
	@GO="$(GO)" hack/tools.sh busybox registry kubectl
	@GO="$(GO)" hack/conformance/build.sh
	@NODES=$(or $(NODES),1) hack/conformance/run.sh $(if $(FOCUS),'$(FOCUS)')

# FOCUS, a regular expression of specs' names, chooses some.
test-csi-mock: build testbins ## Kubernetes' specs "CSI Mock" on the cluster: each call of the kubelet and the sidecars is checked; writes docs/csi-mock.md (needs root; long)
	@hack/conformance/deps.sh
	@GO="$(GO)" hack/tools.sh busybox registry kubectl
	@GO="$(GO)" hack/conformance/build.sh
	@GO="$(GO)" hack/conformance/csimock.sh
	@GO="$(GO)" hack/csi/build.sh
	@hack/conformance/csi.sh $(if $(FOCUS),'$(FOCUS)')

# POLICY_CASES, POLICY_FOCUS and POLICY_TESTS, regular expressions, choose cases of cyclonus, specs, and tests of
# ClusterNetworkPolicy; the page is written only without them.
test-policy: build testbins ## other people's tests of network policies; writes docs/network-policy-conformance.md (needs root; long)
	@hack/conformance/deps.sh
	@GO="$(GO)" hack/tools.sh busybox registry kubectl
	@GO="$(GO)" hack/conformance/build.sh
	@GO="$(GO)" hack/policy/build.sh
	@hack/policy/run.sh $(if $(POLICY_CASES)$(POLICY_FOCUS)$(POLICY_TESTS),'$(or $(POLICY_CASES),-)' '$(or $(POLICY_FOCUS),-)' '$(or $(POLICY_TESTS),-)')

install: build ## install the binaries (of builder, too, if it was built) and the systemd units (PREFIX, DESTDIR)
	install -d "$(DESTDIR)$(PREFIX)/bin"
	install -m 0755 bin/coracled bin/containerd-shim-coracle-v1 bin/coracle-oci bin/coracle-oci-libcontainer bin/coracle-lazy bin/coracle bin/coracle-kube bin/coracle-bgp \
	  $(wildcard bin/coracle-build bin/coracle-buildkitd) "$(DESTDIR)$(PREFIX)/bin/"
	install -d "$(DESTDIR)$(PREFIX)/lib/systemd/system"
	for unit in coracled.service coracle.service; do sed 's|/usr/local|$(PREFIX)|' packaging/$$unit > "$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit"; done

deb: build ## Debian packages into out/deb
	@GO="$(GO)" packaging/build.sh

release: ## the files of the release that this commit is tagged as, if all of docs/status.md holds
	@git describe --exact-match --match 'v[0-9]*' HEAD >/dev/null && changes=$$(git status --porcelain --untracked-files=normal) && [[ -z $$changes ]] || { echo 'release: this is not a clean commit with a tag v…; make dist makes the files without one' >&2; exit 1; }
	@$(MAKE) --no-print-directory status
	@$(MAKE) --no-print-directory dist

dist: deps ## the files of a release for amd64 and arm64 into out/release: packages, archives, licences, SBOM, sources
	@GO="$(GO)" packaging/release.sh $(VERSION)

reproduce: deps ## the files of a release, built twice in different circumstances and compared (long)
	@GO="$(GO)" packaging/reproduce.sh $(VERSION)

test-deb-vm: deb ## the Debian packages, and upstream's kubelet on them, under systemd in a virtual machine (VM_RUN, see hack/oci/vm.sh)
	@GO="$(GO)" hack/tools.sh crictl kubectl
	@GO="$(GO)" hack/peers/kube.sh kubelet
	@packaging/vm.sh

clean: ## remove what was built (the demo has to be down)
	rm -rf bin out
