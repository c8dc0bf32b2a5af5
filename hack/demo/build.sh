#!/usr/bin/env bash
# build.sh: builds the programs that the demo runs, and no others, each with a line that says so. The largest first: the
# others share packages with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# follow TOTAL: reads the names of packages that `go build -v` prints, and says now and then how long TOTAL of them will
# take. All else that it prints is passed on.
follow() {
  local total=$1 built=0 began=$SECONDS said=$SECONDS line
  while IFS= read -r line; do
    if [[ ! $line =~ ^[^[:space:]:]+$ ]]; then
      printf '%s\n' "$line" >&2
      continue
    fi
    built=$((built + 1))
    if ((SECONDS - said >= 15 && built < total)); then
      said=$SECONDS
      echo "up:   $built of $total packages, about $(((SECONDS - began) * (total - built) / built)) s left"
    fi
  done
}

steps=(binary-coracle-kube binary-coracled binary-containerd-shim-coracle-v1 binary-coracle demo-images)
command -v kubectl >/dev/null || steps+=(kubectl)
steps+=(crictl)
began=$SECONDS
for i in "${!steps[@]}"; do
  step=${steps[i]}
  echo "up: building ${step#binary-} ($((i + 1)) of ${#steps[@]}, $((SECONDS - began)) s)"
  case $step in
    binary-coracle-kube)
      total=$(make --no-print-directory --silent stale-coracle-kube)
      make --no-print-directory --silent "$step" BUILDFLAGS=-v 2>&1 | follow "$total"
      ;;
    kubectl | crictl) GO=${GO:-go} hack/tools.sh "$step" ;;
    *) make --no-print-directory --silent "$step" ;;
  esac
done
