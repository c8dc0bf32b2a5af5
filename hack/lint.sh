#!/usr/bin/env bash
# All linters, at the versions that packaging/tools/go.mod pins. Prints only what is wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
export CGO_ENABLED=1
# The Makefile's list of tags, so that packages compiled for tests are reused here.
tags=$(sed -n 's/^TAGS *:= *//p' Makefile)
export GOFLAGS="-trimpath -buildvcs=false -tags=$tags"
bad=0
tool() { "$go" tool -modfile=packaging/tools/go.mod "$@"; }

# Generated files are left as their generators write them.
mapfile -t files < <(find . -name '*.go' -not -path './bin/*' -not -name '*.pb.go' | sort)
unformatted=$(tool gofumpt -l "${files[@]}")
if [[ -n $unformatted ]]; then
  printf 'lint: not formatted (run %s tool -modfile=packaging/tools/go.mod gofumpt -w FILE):\n%s\n' "$go" "$unformatted" >&2
  bad=1
fi
modules=(github.com/coracle-project/coracle/internal/{conntrack,crilog,programpages}) # each a module of its own
"$go" vet ./... "${modules[@]}" || bad=1
tool staticcheck -tags "$tags" ./... "${modules[@]}" || bad=1
# Packages with their own files for a tag.
mapfile -t faulty < <(grep -rlE '^//go:build .*\bfaults\b' --include='*.go' . | xargs -n1 dirname | sort -u)
"$go" vet -tags "$tags,faults" "${faulty[@]}" || bad=1
tool staticcheck -tags "$tags,faults" "${faulty[@]}" || bad=1
# Tests that other targets than `make test` run.
"$go" vet -tags "$tags,image,kubelet,scale" ./integration || bad=1
"$go" vet -tags "$tags,oci" ./hack/oci/... || bad=1
"$go" vet -tags "$tags,vm" ./snapshot ./pod/reserve || bad=1
"$go" vet -tags "$tags,csi,database,helm,upgrade" ./integration/kube || bad=1
# The driver of `make test-csi` is a module of its own.
(cd hack/csi && GOFLAGS=-trimpath "$go" vet ./...) || bad=1
# The other architecture's types and system calls; those of cluster/, which take minutes, in `make lint-arm64`.
read -ra without_c <<<"$NOCPKGS"
GOARCH=arm64 CGO_ENABLED=0 "$go" vet "${without_c[@]}" || bad=1
# cluster/, image/build/ and packaging/tools/ are modules of their own, with their own tags.
tags=$(sed -n 's/^OTHERTAGS *:= *//p' Makefile)
export GOFLAGS="-trimpath -buildvcs=false -tags=$tags" CGO_ENABLED=0
(cd image/build && "$go" vet ./...) || bad=1
(cd packaging/tools && "$go" vet ./...) || bad=1
(cd image/build && "$go" tool -modfile=../../packaging/tools/go.mod staticcheck -tags "$tags" ./...) || bad=1
replaced=github.com/google/go-cmp/... # cluster/replaced, a module of its own
(cd cluster && "$go" vet ./... "$replaced") || bad=1
(cd cluster && "$go" vet -tags "$tags,nodes" ./integration/nodes) || bad=1
(cd cluster && "$go" vet -tags "$tags,nodes,vm" ./integration/nodes) || bad=1
(cd cluster && "$go" vet -tags "$tags,ha,skew" ./integration/controlplanes) || bad=1
(cd cluster && "$go" vet -tags "$tags,bgp" ./integration/bgp ./integration/nodes) || bad=1
(cd cluster && "$go" vet -tags "$tags,vm" ./controllers/localpath ./kubelet/cgroups ./kubelet/volume) || bad=1
(cd cluster && "$go" tool -modfile=../packaging/tools/go.mod staticcheck -tags "$tags" ./... "$replaced") || bad=1

mapfile -t scripts < <(find hack .ci packaging -type f \( -name "*.sh" -o -path ".ci/run" \) | sort)
shellcheck -x "${scripts[@]}" || bad=1
exit "$bad"
