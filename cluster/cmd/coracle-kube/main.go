// Command coracle-kube is a Kubernetes in one process: API server, scheduler, controllers and
// kubelet. `coracle up` starts it; each part can also be run alone.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	_ "time/tzdata" // CronJobs have time zones, and a machine may lack the files

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	_ "github.com/coracle-project/coracle/cluster/internal/queues"    // no metrics of work queues
	_ "github.com/coracle-project/coracle/cluster/internal/summaries" // no quantiles of admission
)

// exitForGood is the exit code of a process that would end in the same way if it was started again:
// its supervisor ends with it. It is sysexits.h's EX_CONFIG, as coracled's.
const exitForGood = 78

func main() { os.Exit(run()) }

// run is main without the exit, for the tests of the command line.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var levels slog.LevelVar
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: &levels}))
	g, err := inheritedGate()
	if err == nil {
		err = command(log, &levels, g).ExecuteContext(ctx)
	}
	if ctx.Err() == nil && errors.Is(err, errAgain) {
		log.Warn("serving ends", "err", err)
		stop()
		err = startAgain()
	}
	if err != nil {
		if g.refuse(err) || errors.Is(err, errGivenUp) {
			return exitRefused
		}
		fmt.Fprintln(os.Stderr, "coracle-kube:", err)
		if errors.Is(err, etcd.ErrRemoved) {
			return exitForGood
		}
		return 1
	}
	return 0
}

// startAgain replaces this process by another of the same program and arguments, which does not
// wait at a gate. It keeps its ID, so its supervisor does not take it for one that failed.
func startAgain() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	args := slices.DeleteFunc(slices.Clone(os.Args), func(arg string) bool { return arg == "--"+gateFlag })
	return unix.Exec(program, args, os.Environ())
}
