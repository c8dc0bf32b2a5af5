package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/shim/client"
)

// While the shim of one pod does not answer, the other pods are recovered and work. The pod, and
// everything without a record, stays as it is. The pod is recovered when the shim answers.
func TestRecoveryWithoutOneShim(t *testing.T) {
	b := newBench(t)
	m1, h := b.manager()
	var podIDs, ids [2]string
	for i, name := range []string{"silent", "other"} {
		podIDs[i] = must[string](t)(m1.Run(t.Context(), podConfig(name)))
		ids[i] = must[string](t)(m1.Create(t.Context(), podIDs[i], containerConfig("run")))
		ok(t, m1.StartContainer(t.Context(), ids[i]))
	}
	b.kill(h)
	bare := table.NewID()
	ok(t, m1.dirs.Containers().Make(bare))
	ok(t, os.WriteFile(filepath.Join(m1.dirs.Containers().Of(bare), "config.json"),
		[]byte(`{"annotations":{"io.kubernetes.cri.sandbox-id":"`+podIDs[0]+`"}}`), 0o600))
	gone := table.NewID() // a pod without any record
	b.mu.Lock()
	b.silent = map[string]error{podIDs[0]: client.ErrUnavailable, gone: client.ErrUnavailable}
	b.procs[gone] = &proc{podID: gone, args: []string{"run"}, state: client.StateRunning}
	b.pins[m1.dirs.NamespacesOf(gone)] = true
	b.mu.Unlock()
	ok(t, os.Mkdir(m1.dirs.NamespacesOf(gone), 0o755))
	m, _ := b.manager()
	if err := m.Ready(); err != nil {
		t.Fatal(err)
	}
	if m.RecoveryErrors() != 2 {
		t.Errorf("%d recovery errors", m.RecoveryErrors())
	}
	ok(t, m.Remove(t.Context(), podIDs[1]))
	if err := m.recovery.EndLost(t.Context()); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("comparison: %v", err)
	}
	idle(t, m)
	b.mu.Lock()
	for _, id := range []string{ids[0], gone} {
		if p := b.procs[id]; p == nil || p.state != client.StateRunning {
			t.Errorf("%s: %+v", id, p)
		}
	}
	if !b.pins[m.dirs.NamespacesOf(gone)] || !b.pins[m.dirs.NamespacesOf(podIDs[0])] {
		t.Errorf("namespaces: %v", b.pins)
	}
	b.mu.Unlock()
	if _, left := m.recovery.Find(UnmanagedContainer, bare); !left {
		t.Error("the bare directory is removed")
	}
	removed := make(chan struct{})
	once := sync.OnceFunc(func() { close(removed) })
	b.fault("shim.DeletePod", func(context.Context) error { once(); return nil })
	stopped := make(chan error, 1)
	go func() { stopped <- m.StopContainer(t.Context(), ids[0], time.Hour) }()
	b.mu.Lock()
	b.silent = nil
	b.mu.Unlock()
	select {
	case err := <-stopped:
		ok(t, err)
	case <-time.After(patience):
		t.Fatal("it is not recovered")
	}
	if c := must[state.Container](t)(m.Container(ids[0])); c.State != state.Exited || c.ExitCode != 143 {
		t.Errorf("container is %s, %d", c.State, c.ExitCode)
	}
	select {
	case <-removed:
	case <-time.After(patience):
		t.Fatal("the unknown pod is not removed")
	}
	ok(t, m.RemoveContainer(t.Context(), bare))
	ok(t, m.Remove(t.Context(), podIDs[0]))
	idle(t, m)
	b.nothingLeft()
}
