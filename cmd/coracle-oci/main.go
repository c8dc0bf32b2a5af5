// Command coracle-oci makes and drives containers from OCI bundles. Its commands
// and flags are those of runc, so podman, docker, containerd, CRI-O and buildkit
// can use it in runc's place.
//
// It links no libcontainer, whose weight each start would pay for. What only that can do is done by
// coracle-oci-libcontainer, which is executed in its place.
package main

import (
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/runtime/zygote/early"
)

func main() { cli.Main(nil, early.Starting) }
