#!/usr/bin/env bash
# kubeproxy.sh: builds upstream's kube-proxy into bin/peers/bin, from the module that cluster/ is made of.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=hack/gobuild.sh
. hack/gobuild.sh

out=$PWD/bin/peers/bin
version=$(cluster_version k8s.io/kubernetes)
once kube-proxy "$version"
echo "peers: building kube-proxy $version" >&2
enter_module kubeproxy # it needs modules that cluster/ has no sums of
"$go" build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$out/" k8s.io/kubernetes/cmd/kube-proxy
built kube-proxy
