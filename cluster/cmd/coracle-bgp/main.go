// Command coracle-bgp announces a node's routes to BGP routers. `coracle up` and `coracle join` run
// it if they are told of peers.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "coracle-bgp:", err)
		return 1
	}
	return 0
}
