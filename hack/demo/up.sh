#!/usr/bin/env bash
# up.sh FLAGS: starts the demo: a registry on loopback, and Kubernetes under a root of its own with a
# Deployment of a web server, its Service, and a visitor. Run again, it shows what runs. FLAGS are passed
# to `coracle up`.
set -euo pipefail
# shellcheck source=hack/demo/env.sh
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
as_root "$@"
export PATH=$PATH:$repo/bin/tools

install -d -m 0700 "$root" "$state"
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
  alive "$root/registry.pid" "$imagetool" && return
  ! answers || die "port ${registry#*:} on loopback is taken by another program; choose another: make up DEMO_REGISTRY_PORT=5056"
  setsid "$imagetool" serve -listen "$registry" -dir "$root/registry" >"$root/logs/registry.log" 2>&1 </dev/null &
  echo $! >"$root/registry.pid"
  wait_for 300 "the registry" "$root/logs/registry.log" answers
}

cat >"$config" <<C
# Written by make up. All settings: bin/coracled config default
[image.registry."$registry"]
plain_http = true

[network]
name = "coracle-demo0"
cni_conf_dir = "$root/cni" # empty: the built-in network, whatever this machine has configured
C
sed "s|REGISTRY|$registry|" "$repo/hack/demo/web.yaml" >"$root/web.yaml"

start_registry
"$imagetool" push -registry "$registry" -set demo
"$coracle" up --root "$root" --state "$state" --runtime-config "$config" --port "$port" --service-cidr "$services" \
  --cgroup-root "/$cgroup" --pod-log-dir "$root/logs/pods" --apply "$root/web.yaml" "$@"

export KUBECONFIG=$root/kubeconfig
crictl=$repo/bin/tools/crictl
sidecars=$("$crictl" -c "$root/crictl.yaml" ps -q --name '^sidecar$')
sidecar=${sidecars%%$'\n'*} # one of them; no head(1), which pipefail takes for a failure
# The address of the node, as a part of a URL.
node=$(kubectl get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}')
node=${node%% *} # with two families there are two
export no_proxy=$node${no_proxy:+,$no_proxy}
[[ $node != *:* ]] || node="[$node]"
from_pod=(kubectl exec deployment/visitor -- wget -q -O - http://web/)
from_host=(curl -fsS "http://$node:30080/")
echo
kubectl get nodes,deployments,services,pods -o wide
echo
"$crictl" -c "$root/crictl.yaml" ps
echo
# Pods that are ready become endpoints a moment later.
for way in from_pod from_host; do
  declare -n fetch=$way
  fetched() { answer=$(timeout 60 "${fetch[@]}"); }
  wait_for 300 "the Service web" "$root/logs/kube.log" fetched
  echo "\$ ${fetch[*]}"
  echo "$answer"
done
echo
echo "Try next:"
echo
echo "  export KUBECONFIG=$root/kubeconfig"
command -v kubectl | grep -qv "^$repo" || echo "  export PATH=\$PATH:$repo/bin/tools"
echo "  ${from_pod[*]}"
echo "  ${from_host[*]}"
echo "  kubectl logs deployment/web -c sidecar"
echo "  kubectl exec -it deployment/web -c sidecar -- sh"
echo "  kubectl scale deployment web --replicas=5"
echo
echo "or, one layer below:"
echo
echo "  export CRI_CONFIG_FILE=$root/crictl.yaml"
echo "  $crictl logs ${sidecar:0:13}"
echo "  $crictl exec -it ${sidecar:0:13} sh"
echo "  $crictl stats"
