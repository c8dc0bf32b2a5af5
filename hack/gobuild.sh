# shellcheck shell=bash
# gobuild.sh: sourced by scripts that build test programs with Go, some of them with the modules of cluster/. It sets go, repo
# (this repository) and the flags of all builds. The caller sets out, the directory of what it builds.
go=${GO:-go}
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-trimpath -buildvcs=false -tags=netgo,osusergo,grpcnotrace,fieldsv1string'

# cluster_version MODULE: the version of a module that cluster/ is made of.
cluster_version() { (cd "$repo/cluster" && "$go" list -m -f '{{.Version}}' "$1"); }

# once NAME VERSION: ends the script if that version of NAME has been built.
once() {
  stamp=${out:?}/.$1-$2
  [[ ! -e $stamp ]] || exit 0
  mkdir -p "$out"
}

# built NAME: notes that what once has asked for is built.
built() {
  rm -f "$out/.$1"-*
  touch "$stamp"
}

# enter_module NAME FILE...: makes a module of its own of the files and goes there until the script ends. It has the cluster's
# versions of what both need, and may need more. The tags are the cluster's, so what both have is compiled once.
enter_module() {
  local name=$1
  shift
  tmp=$(mktemp -d)
  trap 'rm -rf "$tmp"' EXIT
  cp "$repo/cluster/go.mod" "$repo/cluster/go.sum" "$@" "$tmp"
  sed -i "s|=> \.\./|=> $repo/|" "$tmp/go.mod" # modules of this repository
  cd "$tmp" || exit
  GOFLAGS+=' -mod=mod'
  # Test programs may use more of go-cmp than the cluster's programs do.
  "$go" mod edit -module "$name" -dropreplace github.com/google/go-cmp
}
