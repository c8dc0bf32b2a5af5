#!/usr/bin/env bash
# All linters, at the versions that tools/go.mod pins. Prints only what is wrong.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
export CGO_ENABLED=1
bad=0
tool() { "$go" tool -modfile=tools/go.mod "$@"; }

# Generated files are left as their generators write them.
mapfile -t files < <(find . -name '*.go' -not -path './bin/*' -not -name '*.pb.go' | sort)
unformatted=$(tool gofumpt -l "${files[@]}")
if [[ -n $unformatted ]]; then
  printf 'lint: not formatted (run %s tool -modfile=tools/go.mod gofumpt -w FILE):\n%s\n' "$go" "$unformatted" >&2
  bad=1
fi
"$go" vet -tags seccomp,no_grpc ./... || bad=1
"$go" vet -tags seccomp,no_grpc,faults ./... || bad=1
tool staticcheck -tags seccomp,no_grpc ./... || bad=1
tool staticcheck -tags seccomp,no_grpc,faults ./... || bad=1
# Tests that other targets than `make test` run.
"$go" vet -tags seccomp,no_grpc,image,kubelet ./integration || bad=1
# cluster/ and build/ are modules of their own.
(cd build && CGO_ENABLED=0 "$go" vet ./...) || bad=1
(cd build && CGO_ENABLED=0 "$go" tool -modfile=../tools/go.mod staticcheck ./...) || bad=1
(cd cluster && CGO_ENABLED=0 "$go" vet ./...) || bad=1
(cd cluster && CGO_ENABLED=0 "$go" tool -modfile=../tools/go.mod staticcheck ./...) || bad=1

mapfile -t scripts < <(find hack .ci packaging -type f \( -name "*.sh" -o -path ".ci/run" \) | sort)
shellcheck -x "${scripts[@]}" || bad=1
exit "$bad"
