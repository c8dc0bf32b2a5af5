#!/usr/bin/env bash
# build.sh: builds what tests of network policies run into bin/policy: cyclonus (hack/policy/cyclonus, which runs its cases),
# worker, its program that probes inside pods, and agnhost, which that starts for each probe: Kubernetes' own with only the
# commands that these tests use. The whole program takes 20 ms of CPU to start, and a case starts it 324 times.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

go=${GO:-go}
RECIPE=1 # raise it when something of agnhost below changes
out=$PWD/bin/policy
mkdir -p "$out"
export CGO_ENABLED=0 GOWORK=off GOFLAGS='-trimpath -buildvcs=false -tags=netgo,osusergo,grpcnotrace'
# Go finds out itself whether there is something to do.
(
  cd hack/policy/cyclonus
  "$go" build -ldflags '-s -w' -o "$out/cyclonus" .
  "$go" build -ldflags '-s -w' -o "$out/worker" github.com/mattfenwick/cyclonus/cmd/worker
)

version=$(cd cluster && "$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
stamp=$out/.stamp-$version-$RECIPE
[[ ! -e $stamp ]] || exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# Modules that the cluster does not need, with the cluster's versions of the others.
cp cluster/go.mod cluster/go.sum "$tmp"
cd "$tmp"
cat >main.go <<'GO'
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(connect.CmdConnect, porter.CmdPorter, servehostname.CmdServeHostname)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
GO
"$go" mod edit -module agnhost
GOFLAGS+=' -mod=mod' "$go" build -ldflags '-s -w' -o "$out/agnhost" .
rm -f "$out"/.stamp-*
touch "$stamp"
