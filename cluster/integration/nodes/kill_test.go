//go:build nodes

package nodes

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// However late an up or a down is killed, the next one ends with what it is to reach.
func TestKilledUpAndDown(t *testing.T) {
	all := cluster(t, 2)
	one := all[0]
	upArgs := append([]string{"up", "--nodes", "2"}, one.flags()...)
	for after := 20 * time.Millisecond; ; after = after * 3 / 2 {
		t.Run(fmt.Sprint("killed after ", after), func(t *testing.T) {
			if one.killed(t, after, upArgs...) {
				one.Must(t, upArgs...)
			}
			// Nothing is awaited: up returns when all is well.
			if status := one.Must(t, "status"); !strings.Contains(status, "node one-2") {
				t.Errorf("status does not show both nodes: %s", status)
			}
			if one.killed(t, min(after, time.Second)/4, "down") {
				one.Must(t, "down")
			}
			one.gone(t)
		})
		if t.Failed() || after > 4*time.Second {
			break
		}
	}
	// Just when up has started something, which may not have come far.
	for _, program := range []string{
		"coracled --root", " supervise ", "coracle-kube server", " join ", "coracle-kube agent",
	} {
		t.Run("killed when it starts "+strings.TrimSpace(program), func(t *testing.T) {
			one.killedWhen(t, program, upArgs...)
			one.Must(t, "down")
			one.gone(t)
			one.Must(t, "down", "--purge") // so that the next up joins again
		})
	}
	one.Must(t, "down", "--purge")
	if left, err := os.ReadDir(filepath.Join(one.dir, "root")); err == nil {
		t.Errorf("down --purge has left %v", left)
	}
}

// Regression: a process that was killed has its locks until it is scheduled. An up in that moment
// waited for that supervisor until its time was over. One that is stopped stands for it.
func TestUpWhileASupervisorEnds(t *testing.T) {
	one := cluster(t, 2)[0]
	upArgs := append([]string{"up", "--nodes", "2"}, one.flags()...)
	one.Must(t, upArgs...)
	supervisor := one.supervisor(t)
	if err := unix.Kill(supervisor, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	one.killKube(t)
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(one.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	var port net.Listener
	testkit.Eventually(t.Context(), t, "listen in the API server's place", func() (bool, error) {
		port, err = net.Listen("tcp", strings.TrimPrefix(config.Host, "https://"))
		return err == nil, err
	})
	asked := make(chan error, 1)
	go func() {
		conn, err := port.Accept() // from up, which has taken the supervisor for one that runs
		if err == nil {
			_ = conn.Close()
		}
		asked <- errors.Join(err, port.Close(), unix.Kill(supervisor, unix.SIGKILL))
	}()
	one.Must(t, upArgs...)
	_ = port.Close() // up may not have connected
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if now := one.supervisor(t); now == supervisor {
		t.Errorf("the supervisor is still process %d", now)
	}
}

// killed runs coracle, kills it after a time, and says whether it was not done by then.
func (m *machine) killed(t *testing.T, after time.Duration, args ...string) bool {
	t.Helper()
	where := []string{"--root", filepath.Join(m.dir, "root"), "--state", filepath.Join(m.dir, "state")}
	cmd := exec.Command(bin("coracle"), append(where, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	err := cmd.Wait()
	if err != nil && !strings.Contains(err.Error(), "killed") {
		t.Errorf("coracle %s: %v", args[0], err)
	}
	return err != nil
}

// killedWhen runs coracle, and kills it as soon as there is a process of this cluster whose
// arguments have some text.
func (m *machine) killedWhen(t *testing.T, text string, args ...string) {
	t.Helper()
	where := []string{"--root", filepath.Join(m.dir, "root"), "--state", filepath.Join(m.dir, "state")}
	cmd := exec.Command(bin("coracle"), append(where, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			t.Errorf("it ended before %q was started: %v", text, err)
			return
		default:
		}
		if m.runs(t, text) {
			_ = cmd.Process.Kill()
			<-ended
			return
		}
	}
}

// runs says whether there is a process of this cluster whose arguments have some text.
func (m *machine) runs(t *testing.T, text string) bool {
	t.Helper()
	return slices.ContainsFunc(testkit.Processes(), func(p testkit.Process) bool {
		return strings.Contains(p.Line(), m.dir) && strings.Contains(p.Line(), text)
	})
}

// gone checks that nothing of nodes is left on the machine but what they keep on disk.
func (m *machine) gone(t *testing.T) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, bridge) {
			t.Errorf("link %s is still there", l.Attrs().Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, m.dir+"/") {
			t.Errorf("mounted still: %s", line)
		}
	}
	for _, dir := range []string{m.cgroup(), m.cgroup() + "-2"} {
		found, err := filepath.Glob("/sys/fs/cgroup/*" + dir)
		more, merr := filepath.Glob("/sys/fs/cgroup" + dir)
		if err != nil || merr != nil || len(found)+len(more) > 0 {
			t.Errorf("cgroups %v %v are still there; %v %v", found, more, err, merr)
		}
	}
	for _, p := range testkit.Processes() {
		if strings.Contains(p.Line(), m.dir) {
			t.Errorf("a process is still there: %s", p.Line())
		}
	}
}
