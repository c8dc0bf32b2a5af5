#!/usr/bin/env bash
# page.sh PAGE CASES LIST PASSED FAILED LEFT-OUT TIERS: writes the page of what passed: CASES are cyclonus' results and LIST its
# cases, TIERS the results of the tests of ClusterNetworkPolicy, the others names of specs of Kubernetes' suite.
set -euo pipefail
page=$1 cases=$2 list=$3 passed=$4 failed=$5 left=$6 tiers=$7
tmp=$(mktemp "$page.XXXXXX")
trap 'rm -f "$tmp"' EXIT

# lines STATE: cases, with a remark if there is one.
lines() { sort -t$'\t' -k2n "$cases" | awk -F'\t' -v state="$1" '$1 == state {print "- " $2 " `" $3 "`" ($4 == "" ? "" : ": " $4)}'; }
# tiers STATE: tests of ClusterNetworkPolicy.
tiers() { sed -n "s|^$1\t\(.*\)|- \`\1\`|p" "$tiers"; }
# some TITLE TEXT: a section, if there are any lines of it on stdin.
some() {
  local text
  text=$(cat)
  [[ -z $text ]] || printf '### %s: %s\n\n%s%s\n\n' "$1" "$(grep -c '^- ' <<<"$text")" "${2:+$2$'\n\n'}" "$text"
}

{
  cat <<'C'
# Other people's tests of network policies

`make test-policy` runs them on the cluster of `coracle up` with its default network, on one node, offline, and writes this
page.

## Cyclonus

All cases of [cyclonus](https://github.com/mattfenwick/cyclonus) 0.5.6, also those that its command line leaves out by default.
A case makes a policy or changes one, or pods, namespaces or their labels. A second later, each of nine pods in three
namespaces connects to each by the name of a Service, with TCP and UDP at two ports. What connected is compared with what
cyclonus expects. A second try of the whole is allowed, as by its command line, since a probe has one second and a busy
machine may need longer. A case that needed it says why.

Left out are:

- connections of a pod to itself. Cyclonus expects that policies forbid them. Kubernetes documents that they cannot.
- probes with SCTP, since the programs of the suite need SCTP sockets, which this kernel does not have. Policies that name
  SCTP are made, and TCP and UDP are probed under them.

C
  lines failed | some Failed ''
  lines passed | some Passed ''
  # shellcheck disable=SC2016 # backquotes of Markdown
  grep '\[.*\bsctp\b.*\]$' "$list" | sed -E 's/^([0-9]+) (.*) \[[^]]*\]$/- \1 `\2`/' | some 'Cases whose policies name SCTP, which is not probed' ''
  echo "## Kubernetes' own specs"
  echo
  echo "The specs \`[sig-network] Netpol\` of Kubernetes 1.36.3, without retries."
  echo
  sort -u "$failed" | sed 's/^/- /' | some Failed ''
  sort -u "$passed" | sed 's/^/- /' | some Passed ''
  sort -u "$left" | sed 's/^/- /' | some 'Left out' 'They need SCTP sockets, which this kernel does not have.'
  cat <<'C'
## ClusterNetworkPolicy

The tests of [ClusterNetworkPolicy](https://network-policy-api.sigs.k8s.io/) 0.2.0, with the API of the experimental channel. A
test makes policies and has pods of four namespaces, and pods of the host's network, connect to each other by TCP, UDP and
SCTP, until the result is the expected one, and once more.

Pods speak SCTP by raw sockets, as this kernel has no SCTP sockets: an INIT and its INIT ACK, which are what policies decide
about.

C
  tiers FAIL | some Failed ''
  tiers PASS | some Passed ''
  tiers SKIP | some 'Left out' 'Peers by nodes are experimental and not supported: such a rule accepts nothing or denies everything, and the policy says so.'
} | cat -s | sed -e '${/^$/d}' >"$tmp"
chmod 0644 "$tmp"
mv "$tmp" "$page"
