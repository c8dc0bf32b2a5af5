# shellcheck shell=bash
# shellcheck disable=SC2154 # the script that sources this sets self and keep
# cluster.sh: the cluster on which other people's test suites run: that of `coracle up`, offline, in namespaces of its own,
# with images from a registry of its own. To be sourced in the repository's directory, with $self (the script that runs a
# suite) and $keep (where logs stay) set. bin/ has to have what `make build testbins` makes, and the tools busybox and registry.

# enclose ARGUMENT...: has the script run in namespaces of its own: outside them it starts it again there.
enclose() {
  if [[ -z ${INSIDE:-} ]]; then
    ((EUID == 0)) || exec sudo --preserve-env=PROCS,LIMIT,KEEP,NODES "$self" "$@"
    rm -rf "$keep"
    mkdir -p "$keep"
    INSIDE=1 exec unshare --net --mount --ipc --uts --pid --fork --kill-child --mount-proc "$self" "$@"
  fi
  bin=$PWD/bin
  keep=$(readlink -f "$keep")
}

# shellcheck disable=SC2317 # the trap calls it
finish() {
  local code=$?
  trap - EXIT
  (cd "$dir/root" && cp --parents logs/*.log nodes/*/logs/*.log "$keep/") 2>/dev/null || true
  "$coracle" down --purge --delete-volumes "${place[@]}" >>"$keep/cluster.log" 2>&1 || { echo "down failed; see $keep/cluster.log" >&2; code=1; }
  rm -rf "$dir"
  exit "$code"
}

# start IMAGES [NODES]: starts the cluster, with one of imagetool's sets of images in the registry, until the script ends. It has
# one node; with NODES, those of `coracle up --nodes`.
start() {
  dir=$(mktemp -d /tmp/conf-XXXXXX) # short: sockets' paths are limited
  nodes=${2:-1}
  local address=192.168.77.2
  registry=$address:5000 # not on loopback, of which each node has its own
  coracle=$bin/coracle
  place=(--root "$dir/root" --state "$dir/state")
  trap finish EXIT

  # A node's usual network: an uplink with an address and a default route. What the suites need is all here.
  mount --make-rshared /
  hostname node # specs expect the names of nodes to be those of their machines
  ip link set lo up
  ip link add node0 type veth peer name far0
  ip link set far0 up
  ip addr add "$address/24" dev node0
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
  "$bin/test/imagetool" push -registry "$registry" -set "$1" -busybox "$bin/tools/busybox"

  cat >"$dir/coracled.toml" <<C
[image.registry."$registry"]
plain_http = true
[image.registry."docker.io"]
mirrors = ["$registry"]
[image.registry."registry.k8s.io"]
mirrors = ["$registry"]
[network]
cni_conf_dir = "$dir/cni" # empty: the built-in network
C
  local own=(--node-ip "$address")
  if ((nodes > 1)); then
    # Addresses are on the network that the nodes share, and Services have both families.
    own=(--nodes "$nodes" --service-cidr "10.96.0.0/16,fd96:c0ac:1e::/112")
    ip addr add fd77::2/64 dev node0 nodad
    ip route add default via fd77::1
  fi
  "$coracle" up "${place[@]}" --runtime-config "$dir/coracled.toml" --node-name node "${own[@]}" --cgroup-root "/coracle-${dir##*/}" \
    --pod-log-dir "$dir/logs/pods" --eviction-hard 'memory.available<0%' 2>&1 | tee "$keep/cluster.log"
  export KUBECONFIG=$dir/root/kubeconfig
}
