#!/usr/bin/env bash
# fuzz.sh [SECONDS [NAME...]]: fuzzes all functions of the tree (or those whose name has one of NAME in it), each for an equal
# part of SECONDS, 600 without. What fails is left in the package's testdata/fuzz by `go test`; so are a few small inputs
# that reach more code, which every later `go test` runs as seeds. Commit both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go=${GO:-go}
budget=${1:-600}
shift || true
keep=8     # inputs of a function that are kept
small=2048 # bytes of one
cached=100 # inputs of earlier runs that a function begins with

mapfile -t all < <(grep -rE --include='*_test.go' --exclude-dir=bin '^func Fuzz[A-Za-z0-9_]*\(' . |
  sed -E 's|^\./([^:]*)/[^/:]*:func (Fuzz[A-Za-z0-9_]*).*|\1 \2|' | sort -u)
if (($#)); then
  mapfile -t all < <(printf '%s\n' "${all[@]}" | grep -F -f <(printf '%s\n' "$@"))
fi
((${#all[@]})) || { echo "fuzz: no function of that name" >&2; exit 2; }
each=$((budget / ${#all[@]}))
((each > 0)) || each=1

tags=$(sed -n 's/^TAGS *:= *//p' Makefile)
others=$(sed -n 's/^OTHERTAGS *:= *//p' Makefile)
cache=$("$go" env GOCACHE)/fuzz
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# ended_at_deadline says that a run failed only because its time was over: until Go 1.27 the end can
# come to a worker as an error (https://go.dev/issue/75804). An input that fails is always written.
ended_at_deadline() {
  [[ $(grep -A1 -- '^--- FAIL: ' "$log" | tail -n +2) == '    context deadline exceeded' ]] && ! grep -q 'Failing input written' "$log"
}

bad=0
for line in "${all[@]}"; do
  read -r package name <<<"$line"
  module=. flags=$tags
  case $package in
    cluster/*) module=cluster flags=$others ;;
    internal/crilog) module=$package ;;
    image/build/*) module=image/build flags=$others ;;
  esac
  path=$(realpath -m --relative-to="$module" "$package")
  import=$(cd "$module" && "$go" list -e -f '{{.ImportPath}}' "./$path")
  # All of Go's cache is tried before anything new. It only grows, until there is no time left.
  if [[ -d $cache/$import/$name ]]; then
    find "$cache/$import/$name" -type f -printf '%T@ %p\n' | sort -rn | tail -n "+$((cached + 1))" | cut -d' ' -f2- | xargs -r -d '\n' rm -f
  fi
  if ! (cd "$module" && GOFLAGS="-trimpath -buildvcs=false -tags=$flags" CGO_ENABLED=1 \
    "$go" test -vet=off -run '^$' -fuzz "^$name\$" -fuzztime "${each}s" -fuzzminimizetime 5s -timeout "$((each + 300))s" "./$path") >"$log" 2>&1 && ! ended_at_deadline; then
    cat "$log"
    echo "fuzz: $package $name fails" >&2
    bad=1
    continue
  fi
  # A run without inputs has fuzzed nothing.
  did=$(sed -n 's/^fuzz: elapsed: .* execs: \([0-9]*\) .*/\1/p' "$log" | tail -1)
  if ((${did:-0} == 0)); then
    cat "$log"
    echo "fuzz: $package $name has tried nothing" >&2
    bad=1
    continue
  fi
  kept=$package/testdata/fuzz/$name
  have=0
  [[ ! -d $kept ]] || have=$(find "$kept" -type f | wc -l)
  if ((have < keep)) && [[ -d $cache/$import/$name ]]; then
    mkdir -p "$kept"
    find "$cache/$import/$name" -type f -size "-${small}c" -printf '%s %p\n' | sort -n | cut -d' ' -f2- |
      while read -r file; do [[ -e $kept/${file##*/} ]] || echo "$file"; done |
      awk -v n=$((keep - have)) 'NR <= n' | while read -r file; do cp "$file" "$kept/"; done
    rmdir --ignore-fail-on-non-empty "$kept"
  fi
  printf '%-28s %-20s %10d inputs\n' "$package" "$name" "$did"
done
exit "$bad"
