package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// afterwards is how long memory is watched after a burst, and look how often.
	afterwards = 10 * time.Minute
	look       = 5 * time.Second
	// aged is how long a cluster has been idle before. In its first minutes it grows by 3 MB: some
	// things are done only every five to seven minutes, such as comparing watch caches with etcd.
	aged = 6 * time.Minute
	// much is how many times what was in use before is in use no longer "as before".
	much = 1.2
)

// anonymous is the memory of control plane and kubelet in kB that is no file's: etcd's database,
// which is mapped, and the programs are not in it.
func (b *bench) anonymous() (sum int64) {
	for _, dir := range processes(b.stack.programs()) {
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
				kB, _ := strconv.ParseInt(f[1], 10, 64)
				sum += kB
			}
		}
	}
	return sum
}

// processes are the directories in /proc of those that run one of programs.
func processes(programs []string) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	return slices.DeleteFunc(dirs, func(dir string) bool {
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		return err != nil || !slices.Contains(programs, exe)
	})
}

// watchMemory notes the largest of b.anonymous until stop is called, which returns it.
func (b *bench) watchMemory() (stop func() (peak int64)) {
	ended, peak := make(chan struct{}), b.anonymous()
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				peak = max(peak, b.anonymous())
			case <-ended:
				return
			}
		}
	})
	return func() int64 {
		close(ended)
		watching.Wait()
		return peak
	}
}

// beforeBurst notes the memory of the idle cluster.
func (b *bench) beforeBurst(ctx context.Context) error {
	select {
	case <-time.After(aged):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	b.idleMemory = b.anonymous()
	return nil
}

// afterBurst removes the simulated nodes and all that is left of them, and waits until memory is as
// it was when the cluster was idle. Upstream's nodes are needed for other figures.
func (b *bench) afterBurst(ctx context.Context) error {
	if b.idleMemory == 0 || b.peakMemory == 0 || b.name != "coracle" {
		return nil
	}
	now := int64(0)
	gone, simulated := metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{LabelSelector: "bench=simulated"}
	err := firstError(
		b.kube.CoreV1().Nodes().DeleteCollection(ctx, gone, simulated),
		b.kube.CoordinationV1().Leases(v1.NamespaceNodeLease).DeleteCollection(ctx, gone, simulated),
	)
	for _, namespace := range []string{namespace, "default"} { // nodes' events are in default
		err = firstError(err, b.kube.CoreV1().Events(namespace).DeleteCollection(ctx, gone, metav1.ListOptions{}))
	}
	if err != nil {
		return err
	}
	began, lowest, took := time.Now(), b.anonymous(), time.Duration(0)
	tick := time.NewTicker(look)
	defer tick.Stop()
	for time.Since(began) < afterwards && took == 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		lowest = min(lowest, b.anonymous())
		if float64(lowest) <= much*float64(b.idleMemory) {
			took = time.Since(began)
		}
	}
	for _, m := range []struct {
		when string
		kB   int64
	}{
		{fmt.Sprintf("memory but for files: idle for %v", aged), b.idleMemory},
		{fmt.Sprintf("… most, with %d nodes and %d pods", b.nodes, b.pods), b.peakMemory},
		{fmt.Sprintf("… least in %v after all were deleted", afterwards), lowest},
	} {
		b.found(figure{Name: m.when, Unit: "MB", Value: float64(m.kB) / 1024})
	}
	if took > 0 {
		b.took(fmt.Sprintf("… at most %v times the idle, after", much), took)
	}
	return nil
}
