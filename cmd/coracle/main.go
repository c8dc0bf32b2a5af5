// Command coracle is the operator's command: a whole Kubernetes on this machine with one word.
//
//	coracle up      starts coracled, if none runs, and the cluster process, and waits for the node
//	coracle status  says what runs and what is wrong
//	coracle down    stops what up has started
//
// and, for the node alone, without a Kubernetes: pods, ps, logs, exec, stats, events, and image.
//
// It talks to the parts as other clients do: to coracled in CRI, to the API server with the
// administrator's kubeconfig. coracled is kept alive by its keeper; the cluster process by
// "coracle supervise", which up leaves behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/coracle-project/coracle/cmd/coracle/workload"
)

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	err := command().ExecuteContext(context.Background())
	var code workload.ExitCode
	if errors.As(err, &code) {
		return int(code)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "coracle:", err)
		if final := (forGood{}); errors.As(err, &final) {
			return exitForGood
		}
		return 1
	}
	return 0
}
