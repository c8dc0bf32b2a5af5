#!/usr/bin/env bash
# run.sh [FOCUS]: runs Kubernetes' conformance suite on the cluster of `coracle up`, offline, in namespaces of its own, and
# writes what passed into docs/conformance.md. FOCUS is a regular expression of specs' names. Without one, the specs of that
# page run, and each that fails is an error.
#   PROCS=4       how many specs run at a time        LIMIT=3600   seconds for all of them
#   KEEP=DIR      where logs and reports stay (out/conformance)
# bin/ has to have what `make build testbins` and build.sh make, and the tools busybox, registry and kubectl.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
cd "${self%/*}/../.."
page=docs/conformance.md
keep=${KEEP:-out/conformance}

if [[ -z ${INSIDE:-} ]]; then
  ((EUID == 0)) || exec sudo --preserve-env=PROCS,LIMIT,KEEP "$self" "$@"
  rm -rf "$keep"
  mkdir -p "$keep"
  INSIDE=1 exec unshare --net --mount --ipc --uts --pid --fork --kill-child --mount-proc "$self" "$@"
fi

bin=$PWD/bin
keep=$(readlink -f "$keep")
dir=$(mktemp -d /tmp/conf-XXXXXX) # short: sockets' paths are limited
registry=127.0.0.1:5000
cgroup=/coracle-conformance-$$
coracle=$bin/coracle
place=(--root "$dir/root" --state "$dir/state")

# shellcheck disable=SC2317 # the trap calls it
finish() {
  local code=$?
  trap - EXIT
  cp "$dir"/root/logs/*.log "$keep/" 2>/dev/null || true
  "$coracle" down --purge "${place[@]}" >>"$keep/cluster.log" 2>&1 || { echo "conformance: down failed; see $keep/cluster.log" >&2; code=1; }
  rm -rf "$dir"
  exit "$code"
}
trap finish EXIT

# A node's usual network: an uplink with an address and a default route. What the suite needs is all here.
mount --make-rshared /
ip link set lo up
ip link add node0 type veth peer name far0
ip link set far0 up
ip addr add 192.168.77.2/24 dev node0
ip link set node0 up
ip route add default via 192.168.77.1

cat >"$dir/registry.yml" <<C
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $dir/registry}}
http: {addr: "$registry"}
C
OTEL_TRACES_EXPORTER=none "$bin/tools/registry" serve "$dir/registry.yml" >"$keep/registry.log" 2>&1 &
until (exec 3<>"/dev/tcp/${registry%:*}/${registry#*:}") 2>/dev/null; do
  kill -0 $! || { tail "$keep/registry.log" >&2; exit 1; }
  sleep 0.05
done
# Not the distribution's busybox, whose shell runs applets with the variables that have names of its own only.
"$bin/test/imagetool" push -registry "$registry" -set conformance -busybox "$bin/tools/busybox"

cat >"$dir/coracled.toml" <<C
[image.registry."$registry"]
plain_http = true
[network]
cni_conf_dir = "$dir/cni" # empty: the built-in network
C
"$coracle" up "${place[@]}" --config "$dir/coracled.toml" --node-name node --node-ip 192.168.77.2 --cgroup-root "$cgroup" \
  --pod-log-dir "$dir/logs/pods" --eviction-hard 'memory.available<0%' 2>&1 | tee "$keep/cluster.log"
export KUBECONFIG=$dir/root/kubeconfig

cat >"$dir/images.yaml" <<C
promoterE2eRegistry: $registry/e2e-test-images
buildImageRegistry: $registry/build-image
invalidRegistry: invalid.invalid/invalid
gcEtcdRegistry: $registry
gcRegistry: $registry
sigStorageRegistry: $registry/sig-storage
privateRegistry: $registry/private
dockerLibraryRegistry: $registry/library
cloudProviderGcpRegistry: $registry/cloud-provider-gcp
C
export KUBE_TEST_REPO_LIST=$dir/images.yaml

# specs FILE: the names in a list of passed specs, one per line.
specs() { sed -n 's/^- \(.*\)$/\1/p' "$1"; }
# quoted: names as alternatives of a regular expression.
quoted() { sed 's/[][().*+?{}|^$\\]/\\&/g' | paste -sd'|'; }

expected=
focus=${1:-}
if [[ -z $focus ]]; then
  expected=$(specs "$page")
  [[ -n $expected ]] || { echo "conformance: $page lists no specs; name some with FOCUS" >&2; exit 1; }
  focus="($(quoted <<<"$expected"))\$"
fi
# Left out is what one node cannot do, and what ends or starves other specs.
skip='at least two untainted nodes|\[Disruptive\]|\[Flaky\]|\[Slow\]'
began=$SECONDS code=0
# ginkgo takes an interrupt for the end: specs that run then are neither passed nor failed.
timeout -s INT -k 60 "${LIMIT:-3600}" "$bin/conformance/ginkgo" run --procs="${PROCS:-4}" --focus="$focus" --skip="$skip" \
  --no-color --timeout=3h --keep-going --silence-skips --json-report=report.json --output-dir="$keep" "$bin/conformance/e2e.test" -- \
  --kubeconfig="$KUBECONFIG" --provider=skeleton --kubectl-path="$bin/tools/kubectl" --disable-log-dump --dump-logs-on-failure=false \
  --allowed-not-ready-nodes=-1 --num-nodes=1 >"$keep/e2e.log" 2>&1 || code=$?
[[ -s $keep/report.json ]] || { tail -n 20 "$keep/e2e.log" >&2; exit 1; }

jq -r '.[].SpecReports[] | select(.LeafNodeType == "It" and .State != "skipped" and .State != "pending")
  | "\(.State) \((.ContainerHierarchyTexts // []) + [.LeafNodeText] | join(" "))"' "$keep/report.json" | sort -u >"$keep/results"
sed -n 's/^passed //p' "$keep/results" >"$keep/passed"
sed -n '/^\(passed\|interrupted\|aborted\) /d; s/^[a-z]* //p' "$keep/results" >"$keep/failed"
hack/conformance/page.sh "$page" "$keep/passed" "$keep/failed"
echo "conformance: $(wc -l <"$keep/passed") passed, $(wc -l <"$keep/failed") failed in $((SECONDS - began)) s; $keep has the logs"
sed 's/^/FAILED /' "$keep/failed"
sed -n 's/^\(interrupted\|aborted\) /NOT FINISHED /p' "$keep/results"
if [[ -n $expected ]]; then
  missing=$(comm -23 <(sort -u <<<"$expected") <(sort -u "$keep/passed" "$keep/failed"))
  [[ -z $missing ]] || { echo "NOT RUN ${missing//$'\n'/$'\n'NOT RUN }"; code=1; }
fi
[[ ! -s $keep/failed ]] || code=1
exit "$code"
