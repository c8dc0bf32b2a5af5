#!/usr/bin/env bash
# reproduce.sh VERSION: builds the release of this commit twice, from clones in different directories, with different umasks and
# time zones, the second time from an empty build cache, and compares each file. COLD=no uses the build cache for both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:?version}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
repo=$PWD
# build NAME
build() {
  git clone -q "$repo" "$work/$1/src"
  # The libraries of another architecture, which are the machine's.
  if [[ -e bin/sysroot ]]; then mkdir "$work/$1/src/bin" && cp -a bin/sysroot "$work/$1/src/bin/"; fi
  (cd "$work/$1/src" && packaging/release.sh "$version" "$work/$1/out")
}
(umask 022 && TZ=UTC build first)
(
  umask 077
  export TZ=Asia/Tokyo
  if [[ ${COLD:-} != no ]]; then export GOCACHE=$work/cache; fi
  build second/in/another/directory
)
# The report on vulnerabilities changes with their database.
sums() { grep -v 'vulnerabilities.txt$' "$work/$1/out/SHA256SUMS"; }
if diff <(sums first) <(sums second/in/another/directory); then
  echo "reproducible: $(sums first | wc -l) files of $version are the same, built twice"
else
  echo "reproduce: the files above differ" >&2
  exit 1
fi
