package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/pod/table"
	"github.com/coracle-project/coracle/pod/watch"
	"github.com/coracle-project/coracle/shim/client"
)

// lone is a running container with an image volume, in a pod with a name. The daemon that made it
// is dead.
func (b *bench) lone() (m *Manager, podID, id string) {
	b.t.Helper()
	m, h := b.manager()
	podID = must[string](b.t)(m.Run(b.t.Context(), podConfig("p")))
	c := containerConfig("run")
	c.Mounts = []podconfig.Mount{{ContainerPath: "/image", Image: "busybox"}}
	id = must[string](b.t)(m.Create(b.t.Context(), podID, c))
	ok(b.t, m.StartContainer(b.t.Context(), id))
	b.kill(h)
	return m, podID, id
}

// untouched fails the test unless everything of lone is as before.
func (b *bench) untouched(m *Manager, podID, id string) {
	b.t.Helper()
	mounted, err := mounts.First([]string{m.dirs.PodFiles(podID)})
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.procs[id]
	if p == nil || p.state != client.StateRunning || len(p.signals) > 0 {
		b.t.Errorf("container: %+v", p)
	}
	if b.snapshots[id] == "" || b.snapshots[state.VolumeID(id, 0)] == "" {
		b.t.Errorf("snapshots: %v", b.snapshots)
	}
	if _, connected := b.networks[podID]; !connected || !b.pins[m.dirs.NamespacesOf(podID)] {
		b.t.Errorf("networks %v, namespaces %v", b.networks, b.pins)
	}
	if err != nil || mounted == "" {
		b.t.Errorf("the pod's files: %q, %v", mounted, err)
	}
}

// damage is what can happen to a record, and the reason reported then.
var damage = []struct {
	name, reason string
	do           func(t *testing.T, file string)
}{
	{"truncated", "unexpected end of JSON", func(t *testing.T, file string) { t.Helper(); ok(t, os.Truncate(file, 30)) }},
	{"emptied", "unexpected end of JSON", func(t *testing.T, file string) { t.Helper(); ok(t, os.Truncate(file, 0)) }},
	{"another's", "belongs to", func(t *testing.T, file string) { t.Helper(); ok(t, replaceIn(file, `"id":"`, `"id":"x`)) }},
	{"phase of the future", `unknown phase "xr`, func(t *testing.T, file string) {
		t.Helper()
		ok(t, replaceIn(file, `"phase":"r`, `"phase":"xr`))
	}},
	{"unreadable for now", "resource temporarily unavailable", func(t *testing.T, file string) { t.Helper(); unreadable(t, file) }},
	{"missing", "missing", func(t *testing.T, file string) { t.Helper(); ok(t, os.Remove(file)) }},
}

func replaceIn(file, old, with string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.Replace(string(b), old, with, 1)), 0o600)
}

// unreadable makes opening the file without waiting fail with EAGAIN, until the lease that it
// returns is closed (fcntl(2), "Leases").
func unreadable(t *testing.T, file string) *os.File {
	t.Helper()
	lease := must[*os.File](t)(os.Open(file))
	t.Cleanup(func() { _ = lease.Close() }) // the test may have closed it
	must[int](t)(unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK))
	return lease
}

// Whatever happens to its record or its pod's record, a running container keeps running, with
// everything that belongs to it. It is gone when it is removed by its id.
func TestUnreadableRecordIsLeftAlone(t *testing.T) {
	for _, d := range damage {
		for _, kind := range []UnmanagedKind{UnmanagedPod, UnmanagedContainer} {
			t.Run(d.name+"/"+string(kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBench(t)
					m1, podID, id := b.lone()
					file := m1.dirs.Containers().File(id)
					if kind == UnmanagedPod {
						file = m1.dirs.Pods().File(podID)
					}
					d.do(t, file)
					m, _ := b.manager()
					idle(t, m)
					b.untouched(m, podID, id)
					us := m.Unmanaged()
					want := 1
					if kind == UnmanagedPod {
						want = 2 // the pod and its container
					}
					if len(us) != want || us[0].Kind != kind || !strings.Contains(us[0].Reason, d.reason) {
						t.Fatalf("unmanaged: %+v", us)
					}
					for _, u := range us {
						if u.PodID != podID || !strings.Contains(u.Reason, u.ID) {
							t.Errorf("unmanaged: %+v", u)
						}
					}
					pods, containers := len(slices.Collect(m.Pods(state.PodFilter{}))), len(slices.Collect(m.Containers(state.ContainerFilter{})))
					if kind == UnmanagedPod && pods != 0 || containers != 0 {
						t.Errorf("listed: %d pods, %d containers", pods, containers)
					}
					if kind == UnmanagedContainer {
						c := must[state.Container](t)(m.Container(id[:12]))
						if c.ID != id || c.State != state.Unknown || c.Message == "" {
							t.Errorf("its status: %+v", c)
						}
						ok(t, m.StopContainer(t.Context(), id, 0))
						if p := b.proc(id); p != nil {
							t.Errorf("stopped, but: %+v", p)
						}
						ok(t, m.RemoveContainer(t.Context(), id))
					} else {
						if p := must[state.Pod](t)(m.Pod(podID)); p.ID != podID || p.State != state.NotReady {
							t.Errorf("its status: %+v", p)
						}
						ok(t, m.Stop(t.Context(), podID))
						if p := b.proc(id); p != nil {
							t.Errorf("stopped, but: %+v", p)
						}
					}
					ok(t, m.Remove(t.Context(), podID))
					if us := m.Unmanaged(); len(us) != 0 {
						t.Errorf("still unmanaged: %+v", us)
					}
					idle(t, m)
					b.nothingLeft()
				})
			})
		}
	}
}

// A pod with a container whose record is lost can be stopped and removed like any other.
func TestPodTakesUnmanagedContainerAlong(t *testing.T) {
	b := newBench(t)
	m1, podID, id := b.lone()
	ok(t, os.Truncate(m1.dirs.Containers().File(id), 3))
	m, _ := b.manager()
	ok(t, m.Stop(t.Context(), podID))
	if p := b.proc(id); p != nil {
		t.Errorf("the pod is stopped, its container is %+v", p)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// An object whose record could not be read for a moment is managed as soon as it can be read.
func TestRecordsReadableAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		m1, podID, id := b.lone()
		files := []string{m1.dirs.Pods().File(podID), m1.dirs.Containers().File(id)}
		var leases []*os.File
		for _, file := range files {
			leases = append(leases, unreadable(t, file))
		}
		m, _ := b.manager()
		events, stop := m.Watch()
		defer stop()
		b.untouched(m, podID, id)
		if us := m.Unmanaged(); len(us) != 2 {
			t.Fatalf("unmanaged: %+v", us)
		}
		for _, lease := range leases {
			ok(t, lease.Close())
		}
		started := map[string]bool{}
		deadline := time.After(patience)
		for !started[podID] || !started[id] {
			select {
			case ev := <-events:
				started[ev.ID] = started[ev.ID] || ev.Kind == watch.EventStarted
			case <-deadline:
				t.Fatalf("unmanaged: %+v", m.Unmanaged())
			}
		}
		// Its operations wait until it has been recovered.
		ok(t, m.StopContainer(t.Context(), id, 0))
		if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.ExitCode != 137 {
			t.Errorf("container is %s, %d", c.State, c.ExitCode)
		}
		ok(t, m.Remove(t.Context(), podID))
		if us := m.Unmanaged(); len(us) != 0 {
			t.Errorf("still unmanaged: %+v", us)
		}
		idle(t, m)
		b.nothingLeft()
	})
}

// The init of a pod whose directory is lost keeps the containers in the pod's PID namespace alive.
// They have their records, so the init stays with them, and the pod can be removed as a whole.
func TestInitOfUnmanagedContainersStays(t *testing.T) {
	b := newBench(t)
	m1, h := b.manager()
	podID, id := b.sharing(m1)
	b.kill(h)
	ok(t, errors.Join(mounts.Detach(m1.dirs.PodFiles(podID)), os.RemoveAll(m1.dirs.Pods().Of(podID))))
	m, _ := b.manager()
	idle(t, m)
	for _, one := range []string{podID, id} {
		if p := b.proc(one); p == nil || p.state != client.StateRunning || len(p.signals) > 0 {
			t.Errorf("%s: %+v", one, p)
		}
	}
	if len(m.recovery.In(podID)) != 1 {
		t.Errorf("unmanaged: %+v", m.Unmanaged())
	}
	ok(t, m.Remove(t.Context(), podID))
	if us := m.Unmanaged(); len(us) != 0 {
		t.Errorf("still unmanaged: %+v", us)
	}
	idle(t, m)
	b.nothingLeft()
}

// sharing is a running container in its pod's PID namespace.
func (b *bench) sharing(m *Manager) (podID, id string) {
	b.t.Helper()
	cfg := podConfig("p")
	cfg.Namespaces.PID = podconfig.NamespacePod
	podID = must[string](b.t)(m.Run(b.t.Context(), cfg))
	c := containerConfig("run")
	c.Security.Namespaces.PID = podconfig.NamespacePod
	id = must[string](b.t)(m.Create(b.t.Context(), podID, c))
	ok(b.t, m.StartContainer(b.t.Context(), id))
	return podID, id
}

// A container that the shim has without any record is killed only where it must be ours to remove.
func TestContainersWithoutDirectory(t *testing.T) {
	for _, tc := range []struct {
		name  string
		pod   func(m *Manager, podID string) error // what happens to the pod first
		state client.State
		kept  bool
	}{
		{"ready pod, running", nil, client.StateRunning, true},
		{"ready pod, paused", nil, client.StatePaused, true},
		{"ready pod, never let go", nil, client.StateCreated, false},
		{"ready pod, ended", nil, client.StateStopped, false},
		{"stopped pod, running", func(m *Manager, id string) error { return m.Stop(context.Background(), id) }, client.StateRunning, false},
		{"pod half made, running", func(m *Manager, id string) error { return setPhase(m, id, state.PodMaking) }, client.StateRunning, false},
		{"pod half removed, running", func(m *Manager, id string) error {
			return setPhase(m, id, state.PodRemoving)
		}, client.StateRunning, false},
		{"pod unmanaged, running", func(m *Manager, id string) error {
			return os.Truncate(m.dirs.Pods().File(id), 3)
		}, client.StateRunning, true},
		{"pod gone, running", func(m *Manager, id string) error {
			return errors.Join(mounts.Detach(m.dirs.PodFiles(id)), os.RemoveAll(m.dirs.Pods().Of(id)))
		}, client.StateRunning, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m1, h := b.manager()
			podID, id := must[string](t)(m1.Run(t.Context(), podConfig("p"))), table.NewID()
			if tc.pod != nil {
				ok(t, tc.pod(m1, podID))
				idle(t, m1)
			}
			b.kill(h)
			b.mu.Lock()
			b.procs[id] = &proc{podID: podID, args: []string{"run"}, state: tc.state}
			b.mu.Unlock()
			m, _ := b.manager()
			idle(t, m)
			if kept := b.proc(id) != nil; kept != tc.kept {
				t.Errorf("kept %t, unmanaged %+v", kept, m.Unmanaged())
			}
			if tc.kept {
				if len(m.recovery.In(podID)) != 1 {
					t.Errorf("unmanaged: %+v", m.Unmanaged())
				}
				ok(t, m.RemoveContainer(t.Context(), id))
			}
			ok(t, m.Remove(t.Context(), podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

func setPhase(m *Manager, podID string, p state.PodPhase) error {
	return m.pods.Exact(podID).Update(func(r *state.PodRecord) { r.Phase = p })
}

// A container whose record the shim cannot read either keeps running, and can be stopped and
// removed.
func TestShimCannotReadItsRecord(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lose  func(m *Manager, id string) error
		podID bool // the shim knows the pod
	}{
		{"our record is fine", func(*Manager, string) error { return nil }, true},
		{"our record is damaged", func(m *Manager, id string) error { return os.Truncate(m.dirs.Containers().File(id), 3) }, true},
		{"our record is damaged, pod unknown", func(m *Manager, id string) error { return os.Truncate(m.dirs.Containers().File(id), 3) }, false},
		{"our directory is gone, pod unknown", func(m *Manager, id string) error { return os.RemoveAll(m.dirs.Containers().Of(id)) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				m1, podID, id := b.lone()
				ok(t, tc.lose(m1, id))
				b.mu.Lock()
				b.procs[id].unread = true
				if !tc.podID {
					b.procs[id].podID = ""
				}
				b.mu.Unlock()
				m, _ := b.manager()
				idle(t, m)
				if p := b.proc(id); p == nil || p.state != client.StateRunning || len(p.signals) > 0 {
					t.Errorf("container: %+v", p)
				}
				ok(t, m.StopContainer(t.Context(), id, 0))
				if p := b.proc(id); p != nil && p.state != client.StateStopped {
					t.Errorf("stopped, but: %+v", p)
				}
				ok(t, m.RemoveContainer(t.Context(), id))
				ok(t, m.Remove(t.Context(), podID))
				idle(t, m)
				if len(m.Unmanaged()) != 0 {
					t.Errorf("unmanaged: %+v", m.Unmanaged())
				}
				b.mu.Lock()
				if !tc.podID {
					delete(b.snapshots, state.VolumeID(id, 0)) // without the directory, the volumes' snapshots are unknown
				}
				b.mu.Unlock()
				b.nothingLeft()
			})
		})
	}
}

// A directory without a record is removed only if no other part knows the object.
func TestBareDirectories(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind UnmanagedKind
		have func(b *bench, m *Manager, id string) error
		kept bool
	}{
		{"container, nothing", UnmanagedContainer, func(*bench, *Manager, string) error { return nil }, false},
		{"container, mounted", UnmanagedContainer, func(_ *bench, m *Manager, id string) error {
			return mountTmpfs(filepath.Join(m.dirs.Containers().Of(id), "rootfs"))
		}, true},
		{"container, volume mounted", UnmanagedContainer, func(_ *bench, m *Manager, id string) error {
			return mountTmpfs(filepath.Join(m.dirs.Containers().Of(id), "volumes", "1"))
		}, true},
		{"container, in the shim", UnmanagedContainer, func(b *bench, _ *Manager, id string) error {
			b.procs[id] = &proc{podID: table.NewID(), args: []string{"run"}, state: client.StateStopped}
			return nil
		}, true},
		{"pod, nothing", UnmanagedPod, func(*bench, *Manager, string) error { return nil }, false},
		{"pod, network", UnmanagedPod, func(b *bench, _ *Manager, id string) error {
			b.networks[id] = network.Pod{ID: id}
			return nil
		}, true},
		{"pod, namespaces", UnmanagedPod, func(b *bench, m *Manager, id string) error {
			b.pins[m.dirs.NamespacesOf(id)] = true
			return os.MkdirAll(m.dirs.NamespacesOf(id), 0o755)
		}, true},
		{"pod, files mounted", UnmanagedPod, func(_ *bench, m *Manager, id string) error { return mountTmpfs(m.dirs.PodFiles(id)) }, true},
		{"pod, container in the shim", UnmanagedPod, func(b *bench, _ *Manager, id string) error {
			b.procs[table.NewID()] = &proc{podID: id, args: []string{"run"}, state: client.StateRunning}
			return nil
		}, true},
		{"pod, container's bundle names it", UnmanagedPod, func(_ *bench, m *Manager, id string) error {
			c := table.NewID()
			ok := m.dirs.Containers().Make(c)
			return errors.Join(ok, os.WriteFile(m.dirs.Containers().File(c), nil, 0o600),
				os.WriteFile(filepath.Join(m.dirs.Containers().Of(c), "config.json"), []byte(`{"annotations":{"io.kubernetes.cri.sandbox-id":"`+id+`"}}`),
					0o600))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.unstarted()
			id := table.NewID()
			if tc.kind == UnmanagedPod {
				ok(t, m.dirs.Pods().Make(id))
			} else {
				ok(t, m.dirs.Containers().Make(id))
			}
			ok(t, tc.have(b, m, id))
			ok(t, m.Start(t.Context()))
			idle(t, m)
			_, kept := m.recovery.Find(tc.kind, id)
			if kept != tc.kept {
				t.Errorf("kept %t: %+v", kept, m.Unmanaged())
			}
			if tc.kind == UnmanagedPod {
				ok(t, m.Remove(t.Context(), id))
			} else {
				ok(t, m.RemoveContainer(t.Context(), id))
			}
			idle(t, m)
			b.nothingLeft()
		})
	}
}

func mountTmpfs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return mountSized(dir, "size=64k")
}

// The removal of an unmanaged object can be interrupted anywhere, and is then repeated.
func TestCrashWhileRemovingUnmanaged(t *testing.T) {
	for _, point := range []fault.Point{
		"pod.unmanaged.killed", "pod.unmanaged.snapshots", "pod.unmanaged.ended", "pod.unmanaged.network",
	} {
		t.Run(string(point), func(t *testing.T) {
			b := newBench(t)
			m1, podID, id := b.lone()
			ok(t, os.Truncate(m1.dirs.Pods().File(podID), 3))
			ok(t, os.Truncate(m1.dirs.Containers().File(id), 3))
			m2, h2 := b.manager()
			crashed := b.crash(m2, h2, string(point))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go m2.Remove(ctx, podID)
			select {
			case <-crashed:
			case <-time.After(patience):
				t.Fatal("the point was not reached")
			}
			cancel()
			m, _ := b.manager()
			ok(t, m.Remove(t.Context(), podID))
			if us := m.Unmanaged(); len(us) != 0 {
				t.Errorf("still unmanaged: %+v", us)
			}
			idle(t, m)
			b.nothingLeft()
		})
	}
}

// A FIFO in a record's place, which no one writes to, kept the daemon from starting.
func TestFIFOInARecordsPlace(t *testing.T) {
	b := newBench(t)
	m1, podID, id := b.lone()
	file := m1.dirs.Pods().File(podID)
	ok(t, errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600)))
	// Should the start wait for a writer, it gets one that writes nothing.
	opened := make(chan error, 1)
	late := time.AfterFunc(20*time.Second, func() {
		fd, err := unix.Open(file, unix.O_WRONLY|unix.O_NONBLOCK, 0)
		opened <- err
		_ = unix.Close(fd)
	})
	m, _ := b.manager()
	if !late.Stop() && <-opened == nil {
		t.Error("the start waited for the FIFO")
	}
	idle(t, m)
	b.untouched(m, podID, id)
	if us := m.Unmanaged(); len(us) != 2 || us[0].Kind != UnmanagedPod || !strings.Contains(us[0].Reason, "not a regular file") {
		t.Errorf("unmanaged: %+v", us)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
