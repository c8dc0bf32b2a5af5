// Command coracle-oci-libcontainer is coracle-oci with libcontainer linked: what coracle-oci
// executes for configurations that its own engine leaves to libcontainer, for --engine
// libcontainer, and for commands about libcontainer's world, such as checkpoint. It can be called
// in coracle-oci's place, too.
package main

import (
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli/withlc"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/zygote/early"
)

func main() {
	lc.Init()
	// libcontainer's package keeps the main goroutine on the main thread, where each wait of
	// it would cost two changes of threads.
	go cli.Main(withlc.Companion(), early.Starting)
	select {}
}
