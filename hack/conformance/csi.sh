#!/usr/bin/env bash
# csi.sh [FOCUS]: runs Kubernetes' specs "CSI Mock" on the cluster of cluster.sh, but for those of csi-left-out.txt, and writes
# what passed into docs/csi-mock.md. FOCUS is a regular expression of specs' names. Each that fails, or has no time, is an error.
#   PROCS, LIMIT  see suite.sh
#   KEEP=DIR      where logs and reports stay (out/csi-mock)
# bin/ has to have what build.sh, csimock.sh and hack/csi/build.sh build, too, and the tool kubectl.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "${self%/*}/../.."
page=docs/csi-mock.md
left=hack/conformance/csi-left-out.txt
keep=${KEEP:-out/csi-mock}
# shellcheck source=hack/conformance/cluster.sh
source hack/conformance/cluster.sh
# shellcheck source=hack/conformance/suite.sh
source hack/conformance/suite.sh
enclose "$@"

start csimock
kubectl=$bin/tools/kubectl
"$kubectl" apply -f "$bin/csi/manifests/volumesnapshotclasses.yaml" -f "$bin/csi/manifests/volumesnapshotcontents.yaml" \
  -f "$bin/csi/manifests/volumesnapshots.yaml" -f "$bin/csi/manifests/snapshot-controller-rbac.yaml" >>"$keep/cluster.log"
"$kubectl" apply -f - >>"$keep/cluster.log" <<'C'
apiVersion: apps/v1
kind: Deployment
metadata: {name: snapshot-controller, namespace: kube-system}
spec:
  selector: {matchLabels: {app: snapshot-controller}}
  template:
    metadata: {labels: {app: snapshot-controller}}
    spec:
      serviceAccountName: snapshot-controller
      containers:
      - {name: snapshot-controller, image: "registry.k8s.io/sig-storage/snapshot-controller:v8.5.0"}
C
code=0
suite "${1:-CSI Mock}" "$(sed '/^#/d; s/  .*//' "$left" | paste -sd'|')" || code=$?
[[ ! -s $keep/failed ]] || code=1

# The page has those that passed earlier, too, without those that failed now.
tmp=$(mktemp "$page.XXXXXX")
had=$({ specs "$page" Passed 2>/dev/null || true; } | cat - "$keep/passed" | sort -u | comm -23 - <(sort -u "$keep/failed"))
{
  cat <<'C'
# Kubernetes' specs of CSI

`make test-csi-mock` runs the specs "CSI Mock" of Kubernetes' own suite, e2e.test of 1.36.3, on the cluster of `coracle up`, with
upstream's external-provisioner, -attacher, -resizer and -snapshotter. They check which calls a driver gets, with which
secrets, tokens and groups, and what happens when it fails. Where a spec makes calls fail, the driver is in the test
process, and the pod's sockets lead there. In the others it is in the pod. It is the mock driver of the suite in both cases: the Go
module proxy does not have upstream's hostpathplugin. hack/conformance writes this page; `FOCUS` chooses specs.

## Left out

| specs | why |
| --- | --- |
C
  # shellcheck disable=SC2016 # a page, not a command
  sed '/^#/d; s/^\(.*[^ ]\)   *\(.*\)$/| `\1` | \2 |/' "$left"
  echo
  echo "## Passed: $(grep -c . <<<"$had")"
  echo
  sed '/./s/^/- /' <<<"$had"
} >"$tmp"
chmod 0644 "$tmp"
mv "$tmp" "$page"
exit "$code"
