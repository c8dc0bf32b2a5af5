# shellcheck shell=bash
# shellcheck disable=SC2154 # cluster.sh sets bin, dir, keep, nodes and registry
# suite.sh: runs specs of Kubernetes' suite, which build.sh builds, on the cluster of cluster.sh. To be sourced after it.
#   PROCS=4       how many specs run at a time        LIMIT=3600   seconds for all of them

# specs PAGE HEADING: the names in the page's list of passed specs below the heading, one per line.
specs() { awk -v heading="## $2:" '/^## / {below = index($0, heading) == 1} below && sub(/^- /, "")' "$1"; }
# quoted: names as alternatives of a regular expression.
quoted() { sed 's/[][().*+?{}|^$\\]/\\&/g' | paste -sd'|'; }

# suite FOCUS SKIP: runs the specs whose names FOCUS matches and SKIP does not. $keep/passed and $keep/failed are their names
# then; those in neither had no time, and are printed.
suite() {
  local began=$SECONDS code=0
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
  # ginkgo takes an interrupt for the end: specs that run then are neither passed nor failed.
  KUBE_TEST_REPO_LIST=$dir/images.yaml timeout -s INT -k 60 "${LIMIT:-3600}" \
    "$bin/conformance/ginkgo" run --procs="${PROCS:-4}" --focus="$1" --skip="$2" \
    --no-color --timeout=3h --keep-going --silence-skips --json-report=report.json --output-dir="$keep" "$bin/conformance/e2e.test" -- \
    --kubeconfig="$KUBECONFIG" --provider=skeleton --kubectl-path="$bin/tools/kubectl" --disable-log-dump --dump-logs-on-failure=false \
    --allowed-not-ready-nodes=-1 --num-nodes="$nodes" >"$keep/e2e.log" 2>&1 || code=$?
  [[ -s $keep/report.json ]] || { tail -n 20 "$keep/e2e.log" >&2; exit 1; }

  jq -r '.[].SpecReports[] | select(.LeafNodeType == "It" and .State != "skipped" and .State != "pending")
    | "\(.State) \((.ContainerHierarchyTexts // []) + [.LeafNodeText] | join(" "))"' "$keep/report.json" | sort -u >"$keep/results"
  sed -n 's/^passed //p' "$keep/results" >"$keep/passed"
  sed -n '/^\(passed\|interrupted\|aborted\) /d; s/^[a-z]* //p' "$keep/results" >"$keep/failed"
  echo "conformance: $(wc -l <"$keep/passed") passed, $(wc -l <"$keep/failed") failed in $((SECONDS - began)) s; $keep has the logs"
  sed 's/^/FAILED /' "$keep/failed"
  sed -n 's/^\(interrupted\|aborted\) /NOT FINISHED /p' "$keep/results"
  return "$code"
}
