// Command coracle-kube is a Kubernetes in one process: API server, scheduler, controllers and
// kubelet. `coracle up` starts it; each part can also be run alone.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // CronJobs have time zones, and a machine may lack the files

	_ "github.com/coracle-project/coracle/cluster/internal/queues" // no metrics of work queues
)

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "coracle-kube:", err)
		return 1
	}
	return 0
}
