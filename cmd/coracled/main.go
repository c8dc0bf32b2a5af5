// Command coracled is the node's container daemon: it serves CRI on a unix socket.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/shim/keeper"
)

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	fault.Main()
	if err := command().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "coracled:", err)
		return exitStatus(err)
	}
	return 0
}

// exitStatus is 1 or, for records of a newer release, keeper.ExitStay. Neither the keeper nor
// systemd (RestartPreventExitStatus) then restarts coracled: a restart would fail in the same way.
func exitStatus(err error) int {
	if recordfile.Newer(err) != nil {
		return keeper.ExitStay
	}
	return 1
}
