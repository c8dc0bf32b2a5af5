#!/usr/bin/env bash
# Starts the demo: a registry and coracled under a root of their own, and a pod of a
# web server and a sidecar. Run again, it shows what runs.
set -euo pipefail
# shellcheck source=hack/demo/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
as_root "$@"
"$repo/hack/tools.sh" crictl registry

install -d -m 0711 "$root" "$state"
install -d "$root/registry" "$root/logs"
cat >"$root/crictl.yaml" <<C
runtime-endpoint: unix://$socket
image-endpoint: unix://$socket
timeout: 30
C

# wait_for SECONDS WHAT LOG COMMAND...: until the command succeeds.
wait_for() {
  local deadline=$((SECONDS + $1)) what=$2 log=$3
  shift 3
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= deadline)); then
      tail -n 15 "$log" >&2
      die "$what does not answer; its log is $log"
    fi
    sleep 0.05
  done
}

answers() { (exec 3<>"/dev/tcp/${registry%:*}/${registry#*:}") 2>/dev/null; }

start_registry() {
  alive "$root/registry.pid" "$repo/bin/tools/registry" && return
  ! answers || die "port ${registry#*:} on loopback is taken by another program; choose another: make up DEMO_REGISTRY_PORT=5056"
  cat >"$root/registry.yml" <<C
version: 0.1
log: {level: warn, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $root/registry}}
http: {addr: "$registry"}
C
  OTEL_TRACES_EXPORTER=none setsid "$repo/bin/tools/registry" serve "$root/registry.yml" >"$root/logs/registry.log" 2>&1 </dev/null &
  echo $! >"$root/registry.pid"
  wait_for 20 "the registry" "$root/logs/registry.log" answers
}

start_coracled() {
  if cri version >/dev/null 2>&1; then
    cri version | grep -q 'RuntimeName: *coracle' || die "$socket belongs to another runtime"
    return
  fi
  cat >"$config" <<C
# Written by make up. All settings: bin/coracled config default
[image.registry."$registry"]
plain_http = true

[network]
bridge = "coracle-demo0"
cni_conf_dir = "$root/cni" # empty: the built-in bridge, whatever this machine has configured
C
  setsid "$coracled" --root "$root/coracle" --state "$state" --address "unix://$socket" --config "$config" \
    >>"$root/logs/coracled.log" 2>&1 </dev/null &
  wait_for 20 coracled "$root/logs/coracled.log" cri version
}

# pod_json, container_json NAME COMMAND...: what crictl sends.
pod_json() {
  cat <<C
{"metadata": {"name": "demo", "namespace": "default", "uid": "demo-1", "attempt": 0},
 "hostname": "demo", "log_directory": "$root/logs/demo", "labels": {"app": "demo"},
 "linux": {"cgroup_parent": "/$cgroup"}}
C
}

container_json() { # NAME ARGS-AS-JSON
  cat <<C
{"metadata": {"name": "$1"}, "image": {"image": "$registry/demo/web:1"},
 "log_path": "$1.log", "labels": {"app": "demo", "io.kubernetes.pod.name": "demo", "io.kubernetes.pod.namespace": "default"}, $2, "linux": {}}
C
}

start_pod() {
  local pod id
  pod=$(cri pods -q --name '^demo$' --state ready | head -n 1)
  if [[ -n $pod ]] && (($(cri ps -q --pod "$pod" | wc -l) == 2)); then
    return
  fi
  # What is left of an earlier, unfinished run.
  for id in $(cri pods -q --name '^demo$'); do cri rmp -f "$id" >/dev/null; done
  install -d "$root/logs/demo"
  pod_json >"$root/pod.json"
  container_json web '"args": ["-listen", ":8080"]' >"$root/web.json"
  container_json sidecar '"command": ["sh", "-c"], "args": ["while true; do wget -q -O - http://127.0.0.1:8080/ || true; sleep 5; done"]' >"$root/sidecar.json"
  pod=$(cri runp "$root/pod.json")
  for id in web sidecar; do
    cri start "$(cri create --no-pull "$pod" "$root/$id.json" "$root/pod.json")" >/dev/null
  done
}

start_registry
start_coracled
if ! cri inspecti -q "$registry/demo/web:1" >/dev/null 2>&1; then
  "$repo/bin/test/imagetool" push -registry "$registry" -set demo
  cri pull "$registry/demo/web:1" >/dev/null
fi
start_pod

pod=$(cri pods -q --name '^demo$' --state ready | head -n 1)
web=$(cri ps -q --pod "$pod" --name '^web$')
sidecar=$(cri ps -q --pod "$pod" --name '^sidecar$')
wait_for 10 "the web server" "$root/logs/demo/web.log" cri exec "$sidecar" wget -q -O /dev/null http://127.0.0.1:8080/
ip=$(cri inspectp -o go-template --template '{{.status.network.ip}}' "$pod")

echo
cri pods --name '^demo$'
echo
cri ps --pod "$pod"
echo
echo "The pod serves on http://$ip:8080/ (from this machine). Try next:"
echo
echo "  export CRI_CONFIG_FILE=$root/crictl.yaml"
echo "  $crictl logs ${sidecar:0:13}"
echo "  $crictl exec -it ${web:0:13} sh"
echo "  $crictl stats"
