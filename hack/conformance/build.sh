#!/usr/bin/env bash
# build.sh: builds Kubernetes' conformance suite and the programs of its images into bin/conformance, from the module that
# cluster/ is made of: e2e.test, ginkgo, agnhost, for the specs of aggregation sample-apiserver and etcd, and for a spec of
# connection tracking regression-issue-74839.
set -euo pipefail
# shellcheck source=hack/gobuild.sh
source "$(dirname "${BASH_SOURCE[0]}")/../gobuild.sh"

RECIPE=3 # raise it when something below changes
out=$repo/bin/conformance
version=$(cluster_version k8s.io/kubernetes)
once stamp "$version-$RECIPE"
echo "conformance: building Kubernetes' suite $version" >&2
enter_module conformance
"$go" mod edit -require "k8s.io/sample-apiserver@v0.${version#v1.}"
flags="-s -w -X k8s.io/component-base/version.gitVersion=$version"
"$go" build -ldflags "$flags" -o "$out/" github.com/onsi/ginkgo/v2/ginkgo k8s.io/kubernetes/test/images/agnhost \
  k8s.io/kubernetes/test/images/regression-issue-74839 k8s.io/sample-apiserver
"$go" build -ldflags "$flags" -o "$out/etcd" go.etcd.io/etcd/server/v3
"$go" test -c -ldflags "$flags" -o "$out/e2e.test" k8s.io/kubernetes/test/e2e
module=$("$go" list -m -f '{{.Dir}}' k8s.io/kubernetes)
install -m 0644 "$module"/test/images/agnhost/porter/localhost.{crt,key} "$out/"
built stamp
