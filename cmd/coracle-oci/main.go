// Command coracle-oci makes and drives containers from OCI bundles. Its commands
// and flags are those of runc, so podman, docker, containerd, CRI-O and buildkit
// can use it in runc's place.
package main

import (
	"os"

	"github.com/coracle-project/coracle/runtime/lc"
)

func main() {
	lc.Init()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
