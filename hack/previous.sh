#!/usr/bin/env bash
# previous.sh: builds coracled and the shim of the previous release into bin/previous, for upgrade
# tests. Until the first release the previous release is a commit; afterwards it will be a tag.
# Idempotent.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}

PREVIOUS=f4d51d8214c16d8a691bb23e24c14f35c0910e3e

out=$PWD/bin/previous
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
# The flags of this release's build, so that unchanged packages are not compiled again.
CGO_ENABLED=0 "$go" build -ldflags '-s -w' -o "$out/coracled" ./cmd/coracled
CGO_ENABLED=1 "$go" build -ldflags '-s -w -linkmode external -extldflags -static' -o "$out/containerd-shim-coracle-v1" ./cmd/containerd-shim-coracle-v1
touch "$out/.stamp-$PREVIOUS"
