package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

func TestLife(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()

	cfg := podConfig("web")
	cfg.LogDirectory = filepath.Join(t.TempDir(), "logs")
	podID := must[string](t)(m.Run(ctx, cfg))
	p := must[state.Pod](t)(m.Pod(podID[:12]))
	if p.State != state.Ready || p.ID != podID || len(p.IPs) != 1 || p.NetNS == "" || p.Pid != 0 {
		t.Fatalf("pod after Run: %+v", p)
	}
	c := containerConfig("run")
	c.LogPath = "c/0.log"
	c.Security.User.Name = "app"
	img := b.images["busybox"]
	img.Config.Volumes = map[string]struct{}{"/data/volume": {}}
	b.images["busybox"] = img
	id := must[string](t)(m.Create(ctx, podID, c))
	got := must[state.Container](t)(m.Container(id))
	if got.State != state.Created || got.UID != 33 || got.GID != 44 || got.LogPath != filepath.Join(cfg.LogDirectory, "c/0.log") {
		t.Fatalf("container after Create: %+v", got)
	}
	if _, err := os.Stat(filepath.Join(b.state, "containers", id, "rootfs/data/volume")); err != nil {
		t.Errorf("volume of the image: %v", err)
	}
	if b.count("shim.Create") != 0 {
		t.Error("Create called the shim")
	}
	ok(t, m.StartContainer(ctx, id))
	got = must[state.Container](t)(m.Container(id))
	if got.State != state.Running || got.Pid == 0 || got.StartedAt.IsZero() {
		t.Fatalf("container after Start: %+v", got)
	}
	ok(t, m.StopContainer(ctx, id, time.Minute))
	got = must[state.Container](t)(m.Container(id))
	if got.State != state.Exited || got.ExitCode != 143 || got.Reason != "Error" || got.FinishedAt.IsZero() {
		t.Fatalf("container after Stop: %+v", got)
	}
	ok(t, m.RemoveContainer(ctx, id))
	if _, err := m.Container(id); !errors.Is(err, errdefs.ErrNotFound) {
		t.Fatalf("container after Remove: %v", err)
	}
	ok(t, m.Stop(ctx, podID))
	if p := must[state.Pod](t)(m.Pod(podID)); p.State != state.NotReady {
		t.Fatalf("pod after Stop: %+v", p)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
	// All of it once more is no error.
	ok(t, m.StopContainer(ctx, id, 0))
	ok(t, m.RemoveContainer(ctx, id))
	ok(t, m.Stop(ctx, podID))
	ok(t, m.Remove(ctx, podID))
}

func TestRemoveTakesAll(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("web")))
	for i, args := range [][]string{{"run"}, {"stubborn"}, {"exit", "0"}} {
		c := containerConfig(args...)
		c.Attempt = uint32(i)
		ok(t, m.StartContainer(ctx, must[string](t)(m.Create(ctx, podID, c))))
	}
	c := containerConfig("run")
	c.Name = "never-started"
	must[string](t)(m.Create(ctx, podID, c))
	ok(t, m.Remove(ctx, podID))
	if n := len(slices.Collect(m.Containers(state.ContainerFilter{}))) + len(slices.Collect(m.Pods(state.PodFilter{}))); n != 0 {
		t.Errorf("%d objects listed after Remove", n)
	}
	idle(t, m)
	b.nothingLeft()
}

func TestExits(t *testing.T) {
	for _, tc := range []struct {
		name   string
		code   int32
		oom    bool
		reason string
	}{
		{"success", 0, false, "Completed"},
		{"failure", 2, false, "Error"},
		{"out of memory", 137, true, "OOMKilled"},
		{"child out of memory, init fine", 0, true, "Completed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
			id := must[string](t)(m.Create(t.Context(), podID, containerConfig("run")))
			ok(t, m.StartContainer(t.Context(), id))
			if tc.oom {
				b.live.events <- client.Event{PodID: podID, ID: id, Kind: client.EventOOM}
			}
			b.exit(id, tc.code)
			c := ended(t, m, id)
			if c.ExitCode != tc.code || c.Reason != tc.reason || c.Pid != 0 {
				t.Errorf("got code %d, reason %s, pid %d", c.ExitCode, c.Reason, c.Pid)
			}
			ok(t, m.Remove(t.Context(), podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

func TestStartErrors(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	id := must[string](t)(m.Create(ctx, podID, containerConfig("missing")))
	err := m.StartContainer(ctx, id)
	if err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Fatalf("got %v", err)
	}
	c := must[state.Container](t)(m.Container(id))
	if c.State != state.Exited || c.ExitCode != 127 || c.Reason != "StartError" || c.Message == "" {
		t.Errorf("container: %+v", c)
	}
	if err := m.StartContainer(ctx, id); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("second start: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

// A purge took the network down while the teardown of its pods' network was still in the
// background, and failed.
func TestFlushWaitsForTheBackground(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	begun, goOn := make(chan struct{}), make(chan struct{})
	m.clean.Queue("job", "id", func(context.Context) error {
		close(begun)
		<-goOn
		return nil
	})
	<-begun
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Flush(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("while a job runs: %v", err)
	}
	close(goOn)
	ok(t, m.Flush(t.Context()))
}

func TestPodInit(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	cfg := podConfig("shared")
	cfg.Namespaces.PID = podconfig.NamespacePod
	profile := filepath.Join(t.TempDir(), "profile.json")
	ok(t, os.WriteFile(profile, []byte(`{"defaultAction":"SCMP_ACT_LOG"}`), 0o644))
	cfg.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: profile}
	podID := must[string](t)(m.Run(ctx, cfg))
	if p := must[state.Pod](t)(m.Pod(podID)); p.Pid != 0 {
		t.Fatal("an init before a container needs it")
	}
	c := containerConfig("run")
	c.Security.Namespaces.PID = podconfig.NamespacePod
	id := must[string](t)(m.Create(ctx, podID, c))
	c.Attempt++
	must[string](t)(m.Create(ctx, podID, c))
	if p := must[state.Pod](t)(m.Pod(podID)); p.Pid != 101 || b.count("shim.Create") != 1 {
		t.Fatalf("init is %d, %d were made", p.Pid, b.count("shim.Create"))
	}
	spec, err := os.ReadFile(filepath.Join(b.state, "containers", id, "config.json"))
	ok(t, err)
	if !strings.Contains(string(spec), `/proc/101/ns/pid`) {
		t.Error("the container does not join the init's pid namespace")
	}
	spec, err = os.ReadFile(filepath.Join(b.state, "pods", podID, "init", "config.json"))
	ok(t, err)
	if !strings.Contains(string(spec), `"seccomp":{"defaultAction":"SCMP_ACT_LOG"`) {
		t.Errorf("the init does not have the sandbox's filter: %s", spec)
	}
	ok(t, m.StartContainer(ctx, id))
	b.exit(podID, 137)
	<-m.exits.Of(podID, func() bool { return must[state.Pod](t)(m.Pod(podID)).State == state.NotReady })
	if _, err := m.Create(ctx, podID, containerConfig("run")); !errors.Is(err, errdefs.ErrPrecondition) ||
		!strings.Contains(err.Error(), "seccomp profile "+profile+" must allow") {
		t.Errorf("create in a pod without init: %v", err)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}

func TestTargetPID(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	other := must[string](t)(m.Run(ctx, podConfig("q")))
	target := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
	c := containerConfig("run")
	c.Name = "debugger"
	c.Security.Namespaces = podconfig.Namespaces{PID: podconfig.NamespaceTarget, TargetID: target}
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("target not running: %v", err)
	}
	ok(t, m.StartContainer(ctx, target))
	if _, err := m.Create(ctx, other, c); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("target in another pod: %v", err)
	}
	late := must[string](t)(m.Create(ctx, podID, c))
	c.Security.Namespaces.TargetID = "feed"
	c.Attempt++
	if _, err := m.Create(ctx, podID, c); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("target unknown: %v", err)
	}
	// The spec names the target's process by its number, which is another's some day.
	b.exit(target, 0)
	ended(t, m, target)
	if err := m.StartContainer(ctx, late); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("target ended before the start: %v", err)
	}
	if b.proc(late) != nil {
		t.Error("the shim was told of a container whose target has ended")
	}
	ok(t, m.Remove(ctx, podID))
	ok(t, m.Remove(ctx, other))
	idle(t, m)
	b.nothingLeft()
}

// A start that fails after the program runs, while the shim cannot kill: the container
// counts as exited, is killed as soon as that can be done, and can be removed.
func TestFailedStartIsKilledLater(t *testing.T) {
	for _, restart := range []bool{false, true} {
		b := newBench(t)
		m, h := b.manager()
		ctx := t.Context()
		podID := must[string](t)(m.Run(ctx, podConfig("p")))
		id := must[string](t)(m.Create(ctx, podID, containerConfig("run")))
		boom := errors.New("boom")
		m.faultAt = func(_ context.Context, point fault.Point) error {
			if point == "pod.start.started" {
				return boom
			}
			return nil
		}
		tries := make(chan struct{}, 100)
		b.fault("shim.Kill", failTimes(2, client.ErrUnavailable, tries))
		if err := m.StartContainer(ctx, id); !errors.Is(err, boom) {
			t.Fatalf("start: %v", err)
		}
		if c := must[state.Container](t)(m.Container(id)); c.State != state.Exited || c.Reason != "StartError" {
			t.Errorf("the container is %s, %s", c.State, c.Reason)
		}
		if restart {
			b.kill(h)
			m.Close()
			m, _ = b.manager()
		}
		for range 3 { // two that fail, one that does it
			select {
			case <-tries:
			case <-time.After(patience):
				t.Fatal("killing it is not tried again")
			}
		}
		ended(t, m, id)
		ok(t, m.RemoveContainer(ctx, id))
		ok(t, m.Remove(ctx, podID))
		idle(t, m)
		b.nothingLeft()
	}
}

// Whatever step of a run or create fails, nothing is left and the name is free.
func TestFailuresLeaveNothing(t *testing.T) {
	boom := errors.New("boom")
	for _, call := range []string{"pins.Create", "network.Setup"} {
		t.Run("run/"+call, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			b.fault(call, failing(boom))
			cfg := podConfig("p")
			cfg.Namespaces.PID = podconfig.NamespacePod
			if _, err := m.Run(t.Context(), cfg); !errors.Is(err, boom) {
				t.Fatalf("got %v", err)
			}
			idle(t, m)
			b.nothingLeft()
			b.repair(call)
			ok(t, m.Remove(t.Context(), must[string](t)(m.Run(t.Context(), cfg))))
			idle(t, m)
			b.nothingLeft()
		})
	}
	for _, call := range []string{"snapshots.Prepare", "shim.Create", "shim.StartContainer"} {
		t.Run("create/"+call, func(t *testing.T) {
			b := newBench(t)
			m, _ := b.manager()
			podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
			b.fault(call, failing(boom))
			c := containerConfig("run")
			c.Security.Namespaces.PID = podconfig.NamespacePod // whose init calls the shim
			if _, err := m.Create(t.Context(), podID, c); !errors.Is(err, boom) {
				t.Fatalf("got %v", err)
			}
			if n := len(slices.Collect(m.Containers(state.ContainerFilter{}))); n != 0 {
				t.Errorf("%d containers", n)
			}
			b.repair(call)
			must[string](t)(m.Create(t.Context(), podID, c))
			ok(t, m.Remove(t.Context(), podID))
			idle(t, m)
			b.nothingLeft()
		})
	}
}

// A clean-up that fails is tried again until it succeeds, out of everyone's sight.
func TestFailedUndoIsTriedAgain(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	boom := errors.New("boom")
	tries := make(chan struct{}, 10)
	b.fault("network.Setup", failing(boom))
	b.fault("network.Teardown", failTimes(2, boom, tries))
	if _, err := m.Run(t.Context(), podConfig("p")); !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	for range 3 {
		<-tries
	}
	idle(t, m)
	b.nothingLeft()
}

func TestStopSignals(t *testing.T) {
	b := newBench(t)
	img := b.images["busybox"]
	img.Config.StopSignal = "SIGQUIT"
	b.images["quitter"] = img
	m, _ := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	for i, tc := range []struct {
		image, signal string
		grace         time.Duration
		want          syscall.Signal
	}{
		{"busybox", "", time.Minute, syscall.SIGTERM},
		{"quitter", "", time.Minute, syscall.SIGQUIT},
		{"quitter", "SIGRTMIN+3", time.Minute, 37},
		{"busybox", "", 0, syscall.SIGKILL},
	} {
		c := containerConfig("run")
		c.Attempt, c.Image, c.StopSignal = uint32(i), tc.image, tc.signal
		id := must[string](t)(m.Create(ctx, podID, c))
		ok(t, m.StartContainer(ctx, id))
		p := b.proc(id)
		if c := must[state.Container](t)(m.Container(id)); tc.grace > 0 && c.StopSignal != tc.want {
			t.Errorf("%+v: reported as %d", tc, c.StopSignal)
		}
		ok(t, m.StopContainer(ctx, id, tc.grace))
		if !slices.Equal(p.signals, []syscall.Signal{tc.want}) {
			t.Errorf("%+v: got signals %v", tc, p.signals)
		}
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}
