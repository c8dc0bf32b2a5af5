package stats

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/snapshot"
)

// node is what a Reader reads. Each container's cgroup has used 7 ns, unless cgroups says more.
type node struct {
	*Reader
	all       *podtest.Node
	cgroups   map[string]cgstat.Usage
	hung      chan struct{} // cgroups are not read before it is closed
	diskReads atomic.Int32
}

func newNode(t *testing.T) *node {
	n := &node{all: podtest.NewNode(t), cgroups: map[string]cgstat.Usage{}, hung: make(chan struct{})}
	close(n.hung)
	n.Reader = &Reader{
		Pods: n.all.Pods, Containers: n.all.Containers,
		Cgroups: podconfig.Cgroups{Driver: podconfig.Cgroupfs, Root: "/coracle"}, Meter: n, Snapshots: n,
		Life: n.all.Life, Log: n.all.Log, UsageAge: time.Second, DiskUsageAge: 10 * time.Second,
	}
	return n
}

func (n *node) Cgroup(ctx context.Context, path string) (cgstat.Usage, error) {
	select {
	case <-n.hung:
	case <-ctx.Done():
		return cgstat.Usage{}, ctx.Err()
	}
	u, ok := n.cgroups[path]
	if !ok {
		u = cgstat.Usage{CPU: cgstat.CPU{Total: 7}, Memory: cgstat.Memory{WorkingSet: 10, Limit: 100}, Tasks: 2}
	}
	u.Time = time.Now()
	return u, nil
}

func (*node) Processes(_ context.Context, _ string, first int) (cgstat.Processes, error) {
	return cgstat.Processes{Count: 1, OpenFiles: uint64(first)}, nil
}

func (*node) Interfaces(context.Context, string) ([]network.InterfaceUsage, error) {
	return []network.InterfaceUsage{{Name: "eth0", RxBytes: 5}}, nil
}

func (n *node) Usage(context.Context, string) (snapshot.Usage, error) {
	n.diskReads.Add(1)
	return snapshot.Usage{Bytes: 4096, Inodes: 2}, nil
}

// pod adds a ready pod that has a network of its own, with its record as changed.
func (n *node) pod(change ...func(*state.PodRecord)) *state.PodEntry {
	own := func(r *state.PodRecord) { r.Namespaces.Net = "/run/netns/p" }
	return n.all.Pod(append([]func(*state.PodRecord){own}, change...)...)
}

func (n *node) container(p *state.PodEntry, phase state.ContainerPhase) *state.ContainerEntry {
	return n.all.Container(p, podtest.In(phase))
}

func TestContainers(t *testing.T) {
	n := newNode(t)
	p := n.pod()
	created, running := n.container(p, state.ContainerCreated), n.container(p, state.ContainerRunning)
	n.container(p, state.ContainerRunning)
	s, err := n.Container(t.Context(), running.ID)
	if err != nil || s.CPU.Total != 7 || s.Memory.WorkingSet != 10 || s.DiskBytes != 4096 || s.DiskInodes != 2 {
		t.Errorf("got %+v, %v", s, err)
	}
	if s, err := n.Container(t.Context(), created.ID); err != nil || s.CPU.Total != 0 || s.DiskBytes != 4096 || s.Usage.Time.IsZero() {
		t.Errorf("of one that was never started: %+v, %v", s, err)
	}
	if got := n.List(t.Context(), state.ContainerFilter{}); len(got) != 2 {
		t.Errorf("%d readings, want those of the 2 that run", len(got))
	}
	before := n.diskReads.Load()
	n.List(t.Context(), state.ContainerFilter{})
	if n.diskReads.Load() != before {
		t.Error("a fresh reading of the disk was not used again")
	}
}

func TestReadingsOfRemovedContainersAreDropped(t *testing.T) {
	n := newNode(t)
	e := n.container(n.pod(), state.ContainerRunning)
	if _, err := n.Container(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Reader.Processes(t.Context(), e.ID); err != nil {
		t.Fatal(err)
	}
	n.ForgetContainer(e.ID)
	_, usage := n.usage.Peek(e.ID)
	_, disk := n.disk.Peek(e.ID)
	_, processes := n.processes.Peek(e.ID)
	if usage || disk || processes {
		t.Errorf("kept: usage %v, disk %v, processes %v", usage, disk, processes)
	}
}

// What cannot be read is left out of a list.
func TestHungCgroupDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.container(n.pod(), state.ContainerRunning)
		n.hung = make(chan struct{})
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if got := n.List(short, state.ContainerFilter{}); len(got) != 0 {
			t.Errorf("%d readings of a hung cgroup", len(got))
		}
		if got := n.ListPods(short, PodFilter{}); len(got) != 0 {
			t.Errorf("%d readings of a hung pod", len(got))
		}
		close(n.hung)
	})
}

func TestPods(t *testing.T) {
	n := newNode(t)
	ctx := t.Context()
	p := n.pod()
	for range 2 {
		n.container(p, state.ContainerRunning)
	}
	s, err := n.Pod(ctx, p.ID)
	if err != nil || len(s.Containers) != 2 || s.CPU.Total != 14 || s.Memory.WorkingSet != 20 || s.Tasks != 4 {
		t.Errorf("sum of containers: %+v, %v", s, err)
	}
	if len(s.Interfaces) != 1 || s.Interfaces[0].Name != "eth0" || s.NetworkTime.IsZero() {
		t.Errorf("network: %+v", s.Interfaces)
	}
	if got := n.ListPods(ctx, PodFilter{}); len(got) != 1 {
		t.Errorf("%d pods are listed, want 1", len(got))
	}
	if got := n.ListPods(ctx, PodFilter{Labels: map[string]string{"no": "such"}}); len(got) != 0 {
		t.Errorf("%d pods have a label that none has", len(got))
	}
	if _, err := n.Pod(ctx, "no-such"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("unknown pod: %v", err)
	}
}

func TestStoppedPod(t *testing.T) {
	n := newNode(t)
	p := n.pod(func(r *state.PodRecord) { r.Phase = state.PodStopped })
	n.container(p, state.ContainerExited)
	if s, err := n.Pod(t.Context(), p.ID); err != nil || len(s.Containers) != 0 || s.CPU.Total != 0 {
		t.Errorf("of a stopped pod: %+v, %v", s, err)
	}
	if got := n.ListPods(t.Context(), PodFilter{}); len(got) != 0 {
		t.Errorf("a stopped pod is listed: %+v", got)
	}
}

// What ended containers used counts, too.
func TestPodInTheCallersCgroup(t *testing.T) {
	n := newNode(t)
	n.cgroups["/kubepods/pod1"] = cgstat.Usage{CPU: cgstat.CPU{Total: 99}}
	p := n.pod(func(r *state.PodRecord) {
		r.Config.CgroupParent = "/kubepods/pod1"
		r.Namespaces.Net = "" // the host's
	})
	s, err := n.Pod(t.Context(), p.ID)
	if err != nil || s.CPU.Total != 99 || len(s.Interfaces) != 0 {
		t.Errorf("got %+v, %v", s, err)
	}
}
