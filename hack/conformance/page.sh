#!/usr/bin/env bash
# page.sh PAGE PASSED FAILED: writes the page of passed specs: those that it had and those of PASSED, without those of FAILED.
set -euo pipefail
page=$1 passed=$2 failed=$3
tmp=$(mktemp "$page.XXXXXX")
trap 'rm -f "$tmp"' EXIT
had=$({ sed -n 's/^- \(.*\)$/\1/p' "$page" 2>/dev/null || true; } | cat - "$passed" | sort -u | comm -23 - <(sort -u "$failed"))
{
  cat <<'C'
# Kubernetes' conformance suite

`make test-conformance` builds upstream's own suite, e2e.test of Kubernetes 1.36.3, from the Go module proxy, and runs it on the
cluster of `coracle up` with its default network, on one node, offline, without retries. The images are stand-ins made from
the suite's own programs and this machine's. The specs below have passed; the run without `FOCUS` repeats them, and fails if
one of them does. `make test-conformance FOCUS='\[sig-network\] Services'` runs others, adds those that pass and removes those
that fail. hack/conformance writes this page.

Left out: specs that need two nodes, and those marked Disruptive, Flaky or Slow.

C
  echo "## Passed: $(grep -c . <<<"$had")"
  echo
  while read -r spec; do
    [[ -z $spec ]] || echo "- $spec"
  done <<<"$had"
} >"$tmp"
chmod 0644 "$tmp"
mv "$tmp" "$page"
