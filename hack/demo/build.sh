#!/usr/bin/env bash
# build.sh: builds the programs that the demo runs, and no others, each with a line that says so. The largest first: the
# others share packages with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
steps=(binary-coracle-kube binary-coracled binary-containerd-shim-coracle-v1 binary-coracle demo-images)
command -v kubectl >/dev/null || steps+=(kubectl)
steps+=(crictl)
began=$SECONDS
for i in "${!steps[@]}"; do
  step=${steps[i]}
  echo "up: building ${step#binary-} ($((i + 1)) of ${#steps[@]}, $((SECONDS - began)) s)"
  case $step in
    kubectl | crictl) GO=${GO:-go} hack/tools.sh "$step" ;;
    *) make --no-print-directory --silent "$step" ;;
  esac
done
