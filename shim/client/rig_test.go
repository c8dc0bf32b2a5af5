package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/shim/client"
	"github.com/coracle-project/coracle/shim/keeper"
)

// binary is the real shim, built once.
var binary string

func TestMain(m *testing.M) {
	if dir := os.Getenv(daemonVar); dir != "" {
		if err := daemon(dir); err != nil {
			fmt.Fprintln(os.Stderr, "daemon:", err)
		}
		os.Exit(1)
	}
	if order := os.Getenv(ownerVar); order != "" {
		fmt.Fprintln(os.Stderr, "daemon:", obey(order))
		os.Exit(1)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make containers and need root")
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "shimtest")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "containerd-shim-coracle-v1")
	build := exec.Command("go", "build", "-tags", "seccomp no_grpc", "-o", binary,
		"github.com/coracle-project/coracle/cmd/containerd-shim-coracle-v1")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the shim: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := errors.Join(os.RemoveAll(dir), removeCgroups()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// cgroupParent is the parent of this run's cgroups: other packages' tests run next to it.
var cgroupParent = fmt.Sprintf("/coracle-shimtest-%d", os.Getpid())

// removeCgroups removes cgroupParent, which must be empty, from all hierarchies.
func removeCgroups() error {
	var errs []error
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(pattern + cgroupParent) // the pattern is valid
		for _, dir := range dirs {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) { // v1 has the same under two names
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// rig is a keeper, a shim and a client of a test's own.
type rig struct {
	testing.TB
	dir, bundles string
	cfg          client.Config
	c            *client.Client
	ids          atomic.Int32

	mu     sync.Mutex
	exits  map[string]client.Event
	signal chan struct{} // closed when exits has changed
	reader sync.WaitGroup
}

const pod = "pod-1"

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

// handlers are who makes the containers of TestHandlers' rigs, by the name of its subtest.
var handlers map[string]string

// handler is who makes the rig's containers.
func (r *rig) handler() string {
	if names := strings.Split(r.Name(), "/"); len(names) > 1 && names[0] == "TestHandlers" {
		return handlers[names[1]]
	}
	return ""
}

func newRig(t testing.TB) *rig { return newRigWith(t, func(*client.Config) {}) }

// newShortRig is a rig with short limits for hangs. They hold from a daemon's second start on, when
// the shim serves: a first start can take longer than they allow.
func newShortRig(t testing.TB) *rig { return newShortRigWith(t, func(*client.Config) {}) }

func newShortRigWith(t testing.TB, set func(*client.Config)) *rig {
	r := newRigWith(t, set)
	if _, err := r.c.List(r.ctx()); err != nil {
		t.Fatal(err)
	}
	r.disconnect()
	r.cfg.SetLimits(client.ShortLimits())
	r.connect()
	return r
}

func newRigWith(t testing.TB, set func(*client.Config)) *rig {
	r := &rig{TB: t, dir: filepath.Join(t.TempDir(), "shim"), bundles: t.TempDir()}
	r.cfg = client.Config{Binary: binary, StateDir: r.dir, Scope: client.ScopeNode, Log: newLog(t)}
	set(&r.cfg)
	r.connect()
	t.Cleanup(r.end)
	return r
}

func newLog(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.Cleanup(cancel)
	return ctx
}

// connect is the start of a daemon.
func (r *rig) connect() {
	r.Helper()
	c, err := client.New(r.cfg)
	if err != nil {
		r.Fatal(err)
	}
	if err := c.Start(r.ctx()); err != nil {
		r.Fatal(err, r.shimLog())
	}
	r.c = c
	r.exits, r.signal = make(map[string]client.Event), make(chan struct{})
	r.reader.Go(func() {
		for ev := range c.Events() {
			if ev.Kind != client.EventExit {
				continue
			}
			r.mu.Lock()
			if _, twice := r.exits[ev.ID]; twice {
				r.Errorf("exit of %s delivered twice", ev.ID)
			}
			r.exits[ev.ID] = ev
			close(r.signal)
			r.signal = make(chan struct{})
			r.mu.Unlock()
		}
	})
}

// disconnect is the orderly end of a daemon.
func (r *rig) disconnect() {
	r.Helper()
	if err := r.c.Close(); err != nil {
		r.Error(err)
	}
	r.reader.Wait()
}

// killLeft kills what a test that failed may have left running.
func (r *rig) killLeft() {
	k, err := keeper.Dial(r.dir)
	if err != nil {
		return // as it should be
	}
	defer k.Close()
	self := r.keeperPID()
	programs, _ := filepath.Glob(filepath.Join(r.dir, "pods", "*"))
	for _, p := range append(programs, "node", "daemon") {
		name := "shim/" + filepath.Base(p)
		if p == "daemon" {
			name = p
		}
		pid, err := k.Who(name)
		if err == nil && k.Forget(name) == nil && pid > 0 {
			r.Logf("%s %d is killed: %v", name, pid, unix.Kill(pid, unix.SIGKILL))
		}
	}
	r.Logf("keeper %d is killed: %v", self, unix.Kill(self, unix.SIGKILL))
}

// end deletes all containers, and sees that nothing is left.
func (r *rig) end() {
	defer r.killLeft()
	ctx := r.ctx()
	pods, err := r.c.List(ctx)
	if err != nil {
		r.Error(err)
	}
	for p, ids := range pods {
		for _, id := range ids {
			if err := r.c.Kill(ctx, client.KillRequest{PodID: p, ID: id, Signal: unix.SIGKILL}); err != nil &&
				!errors.Is(err, client.ErrNotRunning) {
				r.Error(err)
			}
			r.exit(id)
			if err := r.c.Delete(ctx, p, id); err != nil {
				r.Error(err)
			}
		}
	}
	log := r.shimLog()
	if err := r.c.Shutdown(ctx); err != nil {
		r.Error(err)
		r.c.Close()
	}
	r.reader.Wait()
	if _, err := os.Stat(r.dir); !errors.Is(err, os.ErrNotExist) {
		r.Errorf("state directory is left: %v", err)
	}
	if r.Failed() {
		r.Logf("shim log:\n%s", log)
	}
}

func (r *rig) shimLog() string {
	b, _ := os.ReadFile(filepath.Join(r.dir, "node", "shim.log"))
	return string(b)
}

// request is a container that runs a shell script, with its bundle and a log.
func (r *rig) request(script string) client.LaunchRequest {
	r.Helper()
	id := fmt.Sprintf("%s-%d", strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "=", "-").Replace(r.Name())), r.ids.Add(1))
	bundle := filepath.Join(r.bundles, id)
	if err := runtimetest.MakeRootfs(filepath.Join(bundle, "rootfs")); err != nil {
		r.Fatal(err)
	}
	spec := runtimetest.Spec(id, "/bin/sh", "-c", script)
	spec.Linux.CgroupsPath = cgroupParent + "/" + id
	r.writeSpec(bundle, spec)
	logs := filepath.Join(r.bundles, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		r.Fatal(err)
	}
	return client.LaunchRequest{PodID: pod, ID: id, Bundle: bundle, LogPath: filepath.Join(logs, id+".log"), Handler: r.handler()}
}

func (r *rig) writeSpec(bundle string, spec *specs.Spec) {
	r.Helper()
	b, err := json.Marshal(spec)
	if err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o644); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) run(req client.LaunchRequest) {
	r.Helper()
	if _, err := r.c.Launch(r.ctx(), req); err != nil {
		r.Fatal(err)
	}
}

// exit waits for a container's exit event.
func (r *rig) exit(id string) client.Event {
	r.Helper()
	ctx := r.ctx()
	for {
		r.mu.Lock()
		ev, ok := r.exits[id]
		changed := r.signal
		r.mu.Unlock()
		if ok {
			return ev
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.Fatalf("no exit of %s\n%s", id, r.shimLog())
		}
	}
}

// exec runs a script in a container and returns what it printed.
func (r *rig) exec(id, script string) (stdout, stderr string, code int32) {
	r.Helper()
	var out, errs bytes.Buffer
	code, err := r.c.Exec(r.ctx(), client.ExecRequest{
		PodID: pod, ID: id, Process: process("/bin/sh", "-c", script),
		Streams: client.Streams{Stdout: &out, Stderr: &errs},
	})
	if err != nil {
		r.Fatal(err)
	}
	return out.String(), errs.String(), code
}

func process(args ...string) *specs.Process {
	p := *runtimetest.Spec("x", args...).Process
	return &p
}

// log is the text of a container's log without the records' headers.
func (r *rig) log(path, stream string) string {
	r.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 || (f[2] != "F" && f[2] != "P") {
			r.Fatalf("malformed record %q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			r.Fatalf("malformed record %q: %v", line, err)
		}
		if f[1] != stream {
			continue
		}
		if f[2] == "P" {
			f[3] = strings.TrimSuffix(f[3], "\n")
		}
		text.WriteString(f[3])
	}
	return text.String()
}

// shimPID asks the keeper.
func (r *rig) shimPID() int {
	r.Helper()
	k, err := keeper.Dial(r.dir)
	if err != nil {
		r.Fatal(err)
	}
	defer k.Close()
	pid, err := k.Who("shim/node")
	if err != nil {
		r.Fatal(err)
	}
	return pid
}

// killShim kills the shim with SIGKILL and returns its pid.
func (r *rig) killShim() int {
	r.Helper()
	pid := r.shimPID()
	if pid == 0 {
		r.Fatal("no shim to kill")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		r.Fatal(err)
	}
	return pid
}
