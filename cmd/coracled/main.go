// Command coracled is the node's container daemon: it serves CRI on a unix socket.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/coracle-project/coracle/internal/fault"
)

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	fault.Main()
	if err := command().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "coracled:", err)
		return 1
	}
	return 0
}
