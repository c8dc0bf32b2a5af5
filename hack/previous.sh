#!/usr/bin/env bash
# previous.sh [cluster]: builds coracled and the shim of the previous release into bin/previous, for
# upgrade tests, or with `cluster` all programs of a cluster into bin/previous-cluster. Until the
# first release the previous release is a commit; afterwards it will be a tag. Idempotent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}

PREVIOUS=223333a2d3e6a13d20b3caa70dcad7535ef4b106

out=$PWD/bin/previous
[[ ${1:-} != cluster ]] || out+=-cluster
[[ ! -e $out/.stamp-$PREVIOUS ]] || exit 0
if ! git cat-file -e "$PREVIOUS^{commit}" 2>/dev/null; then
  echo "previous.sh: commit $PREVIOUS is not in this clone: run git fetch --unshallow" >&2
  exit 1
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
git archive "$PREVIOUS" | tar x -C "$tmp"
rm -rf "$out"
mkdir -p "$out"
cd "$tmp"
if [[ ${1:-} == cluster ]]; then
  MAKEFLAGS='' make --no-print-directory GO="$go" OUT="$out" VERSION="${PREVIOUS:0:8}" COMMIT="$PREVIOUS" binaries
  touch "$out/.stamp-$PREVIOUS"
  exit 0
fi
# The flags of this release's build, so that unchanged packages are not compiled again.
CGO_ENABLED=0 "$go" build -ldflags '-s -w' -o "$out/coracled" ./cmd/coracled
CGO_ENABLED=1 "$go" build -ldflags '-s -w -linkmode external -extldflags -static' -o "$out/containerd-shim-coracle-v1" ./cmd/containerd-shim-coracle-v1
touch "$out/.stamp-$PREVIOUS"
