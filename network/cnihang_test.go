package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network/cni"
)

// hanging is a CNI plugin that is a script. Where there is a file hang-VERB, or hang-VERB-POD, that
// verb never ends: it waits for a process that it has started, which has its output open. That one
// writes "hangs" and its id into the FIFO told, which both have open until they end: itself, as it
// may still have to begin a session of its own when the plugin knows the id. With a file daemon,
// ADD ends well and leaves such a process.
const hanging = `#!/bin/sh
hang() {
  exec 3>%[1]s/told
  $1 sh -c 'echo hangs $$ >&3; exec sleep infinity' &
}
for what in $CNI_COMMAND $CNI_COMMAND-$CNI_CONTAINERID; do
  if [ -e %[1]s/hang-$what ]; then
    echo $CNI_COMMAND $CNI_CONTAINERID >>%[1]s/hung
    hang "$(cat %[1]s/hang-$what)"
    wait
  fi
done
case $CNI_COMMAND in
ADD)
  if [ -e %[1]s/daemon ]; then hang; fi
  echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}],"ips":[{"interface":0,"address":"192.0.2.7/24"}]}' ;;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
esac
`

// hangingPlugin adds a configuration whose plugin is hanging, and returns the plugin's directory.
func hangingPlugin(t *testing.T, c *Config) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "hanging"), fmt.Appendf(nil, hanging, dir), 0o755))
	must(t, unix.Mkfifo(filepath.Join(dir, "told"), 0o600))
	c.CNIBinDirs = []string{dir}
	writeConf(t, *c, "10-test.conflist", `{"cniVersion":"1.1.0","name":"test","plugins":[{"type":"hanging"}]}`)
	return dir
}

// hang has a verb hang from now on until the returned function is called. how is what the process
// that it waits for is started with.
func hang(t *testing.T, dir, verb, how string) (release func()) {
	t.Helper()
	file := filepath.Join(dir, "hang-"+verb)
	must(t, os.WriteFile(file, []byte(how), 0o600))
	t.Cleanup(func() { _ = os.Remove(file) }) // nothing waits for it after a failure
	return func() { t.Helper(); must(t, os.Remove(file)) }
}

// hung waits until a plugin hangs. gone waits until none of its processes is left; pid is of the
// one that it waits for.
func hung(t *testing.T, dir string) (pid int, gone func()) {
	t.Helper()
	told, err := os.Open(filepath.Join(dir, "told")) // opens when a plugin has opened it
	must(t, err)
	t.Cleanup(func() { told.Close() })
	r := bufio.NewReader(told)
	line, err := r.ReadString('\n')
	must(t, err)
	word, number, _ := strings.Cut(strings.TrimSpace(line), " ")
	pid, err = strconv.Atoi(number)
	if err != nil || word != "hangs" {
		t.Fatalf("the plugin says %q", line)
	}
	return pid, func() {
		t.Helper()
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("after that the plugin said %q, %v", rest, err)
		}
	}
}

// inBackground calls f, and returns a function that waits for its error.
func inBackground(f func() error) (wait func() error) {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	return func() error { return <-ended }
}

// A DEL that hangs held the pod, and a cleaner of the daemon's, for as long as a child of the
// plugin had its output.
func TestCNITeardownThatHangsEndsWithItsContext(t *testing.T) {
	for name, how := range map[string]string{"in its process group": "", "in a session of its own": "setsid"} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			dir := hangingPlugin(t, &c)
			m := started(t, c)
			p := connect(t, m, "a")
			release := hang(t, dir, "DEL", how)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			wait := inBackground(func() error { return m.Teardown(ctx, p.Pod) })
			pid, gone := hung(t, dir)
			cancel()
			if err := wait(); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "plugin hanging has not answered in time") {
				t.Errorf("error %v", err)
			}
			if how != "" {
				must(t, unix.Kill(pid, unix.SIGKILL)) // no one else knows of it
			}
			gone()
			if l := m.Leases(); len(l) != 1 || !l[0].Removing {
				t.Errorf("leases %v", l)
			}
			release()
			must(t, m.Teardown(t.Context(), p.Pod))
		})
	}
}

// What a plugin that ends well leaves with its output open is not waited for.
func TestCNIPluginThatLeavesADaemon(t *testing.T) {
	c := testConfig(t)
	dir := hangingPlugin(t, &c)
	m := started(t, c)
	must(t, os.WriteFile(filepath.Join(dir, "daemon"), nil, 0o600))
	path, _ := newNetNS(t)
	wait := inBackground(func() error {
		r, err := m.Setup(t.Context(), Pod{ID: "a", NetNS: path})
		if err == nil && fmt.Sprint(r.IPs) != "[192.0.2.7]" {
			err = fmt.Errorf("addresses %v", r.IPs)
		}
		return err
	})
	pid, gone := hung(t, dir)
	must(t, wait())
	must(t, unix.Kill(pid, unix.SIGKILL)) // it is left alone
	gone()
}

// Each of the kubelet's questions for the status left a plugin that hung.
func TestCNIStatusThatHangsIsAskedOnce(t *testing.T) {
	c := testConfig(t)
	dir := hangingPlugin(t, &c)
	release := hang(t, dir, "STATUS", "")
	m := New(c) // ended by the test
	m.cni.asks = cni.NewStatusCalls(patience)
	must(t, m.Start(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := inBackground(func() error { return m.Ready(ctx) })
	_, gone := hung(t, dir)
	last := inBackground(func() error { return m.Ready(t.Context()) })
	for range 3 {
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := m.Ready(impatient); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `CNI network "test"`) {
			t.Errorf("error %v", err)
		}
		cancel()
	}
	cancel()
	if err := wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	must(t, m.Close())
	gone()
	if err := last(); !errors.Is(err, cni.ErrClosed) {
		t.Errorf("who waited until Close: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "hung")); err != nil || string(b) != "STATUS\n" {
		t.Errorf("asked: %q, %v", b, err)
	}
	if err := m.Ready(t.Context()); !errors.Is(err, cni.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	release()
	must(t, started(t, c).Ready(t.Context()))
}

// awaitLeases waits until there are n leases.
func awaitLeases(t testing.TB, m *Manager, n int) {
	t.Helper()
	for end := time.Now().Add(patience); len(m.Leases()) != n; {
		if time.Now().After(end) {
			t.Fatalf("leases %v, want %d", m.Leases(), n)
		}
		time.Sleep(time.Millisecond) // there is no event for it
	}
}

// The daemon did not come up while a plugin hung with what a pod had that is gone, nor were others'
// freed.
func TestCNIRecoverDoesNotWaitForAHungPlugin(t *testing.T) {
	c := testConfig(t)
	dir := hangingPlugin(t, &c)
	m := started(t, c)
	connect(t, m, "good")
	connect(t, m, "bad")
	release := hang(t, dir, "DEL-bad", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := inBackground(func() error { return m.Recover(ctx, nil) })
	_, gone := hung(t, dir)
	awaitLeases(t, m, 1)
	cancel()
	if err := wait(); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "pod bad") {
		t.Errorf("error %v", err)
	}
	gone()
	// And by itself.
	m.cni.wait = time.Millisecond
	if err := m.Recover(t.Context(), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	m.cni.wait = patience
	if l := m.Leases(); len(l) != 1 || l[0].PodID != "bad" || !l[0].Removing {
		t.Errorf("leases %v", l)
	}
	release()
	must(t, m.Teardown(t.Context(), Pod{ID: "bad"}))
}

// A plugin that is being installed cannot be executed until it is closed.
func TestCNIPluginThatIsBeingWritten(t *testing.T) {
	c := testConfig(t)
	dir := hangingPlugin(t, &c)
	m := started(t, c)
	w, err := os.OpenFile(filepath.Join(dir, "hanging"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Ready(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	wait := inBackground(func() error { return m.Ready(t.Context()) })
	must(t, w.Close())
	must(t, wait())
}
