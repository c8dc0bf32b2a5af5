// Command coracle-oci makes and drives containers from OCI bundles. Its commands
// and flags are those of runc, so podman, docker, containerd, CRI-O and buildkit
// can use it in runc's place.
//
// It links no libcontainer, whose weight each start would pay for. What only that can do is done by
// coracle-oci-libcontainer, which is executed in its place.
package main

import (
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	_ "github.com/coracle-project/coracle/runtime/zygote/early" // the first container's starter
)

func main() { cli.Main(nil) }
