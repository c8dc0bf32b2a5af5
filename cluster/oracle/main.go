// Command oracle asks upstream's own control plane what is right: it starts it alongside ours,
// gives both the same nodes and the same manifests, and compares what has become of them once both
// have settled: objects, events, errors, warnings and what kubectl prints.
//
//	oracle -bin bin
//
// What differs by its nature (uids, times, addresses, random names) is given the same name on both
// sides first; see normal. Every other difference is printed as `path: ours / upstream's`, unless
// known.txt explains it. An unknown difference, and a known one that no longer occurs, is an error.
//
// There is no kubelet: a goroutine renews the nodes' leases and says of each bound pod that it
// runs, or, if its label oracle/phase says so, that it has ended.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

//go:embed manifests known.txt
var files embed.FS

const (
	// poll is how often a condition is looked at, patience how long it may take to hold.
	poll     = 200 * time.Millisecond
	patience = 60 * time.Second
)

func main() {
	bin := flag.String("bin", "bin", "directory of coracle-kube, with upstream's in peers/bin and kubectl in tools")
	keep := flag.String("keep", "", "directory to leave logs and all that was compared in (default: nothing is left)")
	flag.Parse()
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, bin, dir string) (err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "oracle-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	known, err := readKnown()
	if err != nil {
		return err
	}
	sides := []*side{newSide("ours", bin, dir, fail), newSide("upstream", bin, dir, fail)}
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.stop())
		}
	}()
	both := func(do func(*side, context.Context) error) error {
		work, each := errgroup.WithContext(ctx)
		for _, s := range sides {
			work.Go(func() error {
				if err := do(s, each); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				return nil
			})
		}
		return errors.Join(work.Wait(), context.Cause(ctx))
	}
	for _, step := range []func(*side, context.Context) error{(*side).start, (*side).addNodes, (*side).submit} {
		if err := both(step); err != nil {
			return err
		}
	}
	// Both have settled when nothing but the known differs. If it stays so, that is the answer.
	var found []difference
	for deadline := time.Now().Add(patience); ; {
		if err := both((*side).look); err != nil {
			return err
		}
		found = compare(sides[0].seen, sides[1].seen)
		if unknown, stale := known.sort(found); len(unknown)+len(stale) == 0 || time.Now().After(deadline) {
			break
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(poll):
		}
	}
	return known.report(os.Stdout, found)
}
