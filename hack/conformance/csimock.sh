#!/usr/bin/env bash
# csimock.sh: builds hack/conformance/csimock, with the modules of cluster/, into bin/conformance.
set -euo pipefail
# shellcheck source=hack/gobuild.sh
source "$(dirname "${BASH_SOURCE[0]}")/../gobuild.sh"

RECIPE=1 # raise it when something below or in csimock changes
out=$repo/bin/conformance
version=$(cluster_version k8s.io/kubernetes)
once csimock "$version-$RECIPE"
enter_module csimock "$repo/hack/conformance/csimock/main.go"
"$go" build -ldflags '-s -w' -o "$out/csimock" .
built csimock
