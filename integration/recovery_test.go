package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/testkit"
)

// victim is what is killed with SIGKILL.
type victim struct {
	name string
	kill func(n *node)
}

var victims = []victim{
	{"coracled", killDaemon},
	{"shim", killShims},
	{"coracled then shim", func(n *node) { killDaemon(n); killShims(n) }},
	{"shim then coracled", func(n *node) { killShims(n); killDaemon(n) }},
	{"keeper", killKeeper},
}

func killDaemon(n *node) { n.t.Helper(); killAll(n, []int{n.PID()}) }
func killShims(n *node)  { n.t.Helper(); killAll(n, n.Shims()) }
func killKeeper(n *node) { n.t.Helper(); killAll(n, n.Keepers()) }

func killAll(n *node, pids []int) {
	n.t.Helper()
	if len(pids) == 0 || pids[0] == 0 {
		n.t.Fatal("nothing to kill")
	}
	for _, pid := range pids {
		if err := testkit.Kill(pid); err != nil {
			n.t.Fatal(err)
		}
	}
}

// ready waits until coracled answers and a shim and a keeper are there.
func (n *node) ready() {
	n.t.Helper()
	eventually(n.t, "coracled, shim and keeper are back", func() bool {
		return n.PID() != 0 && len(n.Shims()) > 0 && len(n.Keepers()) == 1
	})
	eventually(n.t, "coracled serves", func() bool {
		_, err := n.Version(n.ctx(), &cri.VersionRequest{})
		return err == nil
	})
}

// numbered writes lines 1 to count, pausing now and then so that kills fall between
// and into them, and then waits.
func numbered(count int) string {
	return fmt.Sprintf(
		`i=1; while [ $i -le %d ]; do echo "line $i"; [ $((i %% 200)) = 0 ] && usleep 5000; i=$((i+1)); done; echo done >&2; %s`, count, forever,
	)
}

// checkNumbered fails if a line is missing, there twice, torn or out of order.
func checkNumbered(t *testing.T, c *container, count int) {
	t.Helper()
	lines, err := testkit.ReadLog(c.log)
	if err != nil {
		t.Error(err)
	}
	next := 1
	for s := range strings.SplitSeq(strings.TrimSuffix(strings.ReplaceAll(testkit.Text(lines, "stdout"), "\r", ""), "\n"), "\n") {
		if s != "line "+strconv.Itoa(next) {
			t.Fatalf("log has %q where line %d should be (of %d)", s, next, count)
		}
		next++
	}
	if next != count+1 {
		t.Errorf("the log ends after line %d of %d", next-1, count)
	}
}

// A pod that writes all the time goes on, whatever dies, with and without a
// terminal: same ids, same start times, no line lost, none twice.
func TestKillWhileRunning(t *testing.T) {
	const count = 20_000
	for _, scope := range scopes {
		for _, tty := range []bool{false, true} {
			for _, v := range victims {
				t.Run(fmt.Sprintf("%s/tty=%v/%s", scope, tty, v.name), func(t *testing.T) {
					n := newNode(t, testkit.Options{Scope: scope})
					n.pull("busybox")
					n.warm()
					check := n.noLeaks()
					p := n.runPod(nil)
					script := numbered(count)
					if tty {
						script = strings.Replace(script, "echo done >&2;", "touch /done;", 1)
					}
					conf := shell("writer", script)
					conf.Tty = tty
					c := p.run(conf)
					before := c.status()
					for round := range 3 {
						want := (round + 1) * count / 5
						eventually(t, "the writer gets on", func() bool { return logSize(c) > int64(want*30) })
						v.kill(n)
						n.ready()
					}
					eventually(t, "the writer is done", func() bool {
						if tty {
							_, code := c.exec("test", "-e", "/done")
							return code == 0
						}
						raw, _ := os.ReadFile(c.log)
						return strings.Contains(string(raw), "stderr F done\n") // and lines of the other stream after it, maybe
					})
					eventually(t, "the last line is logged", func() bool {
						raw, _ := os.ReadFile(c.log)
						return strings.Contains(string(raw), fmt.Sprintf("line %d", count))
					})
					checkNumbered(t, c, count)
					after := c.status()
					if after.GetId() != before.GetId() || after.GetStartedAt() != before.GetStartedAt() || after.GetState() != before.GetState() {
						t.Errorf("status was %v, is %v", before, after)
					}
					if out, code := c.exec("echo", "works"); out != "works\n" || code != 0 {
						t.Errorf("exec afterwards: %q, %d", out, code)
					}
					p.remove()
					check()
				})
			}
		}
	}
}

func logSize(c *container) int64 {
	fi, err := os.Stat(c.log)
	if err != nil {
		return 0
	}
	return fi.Size()
}

// A container that ends while no one is there to see it: its exit status is known
// afterwards. The keeper is halted meanwhile, or it would end the gap.
func TestExitInTheGap(t *testing.T) {
	for _, tc := range []struct {
		name   string
		victim func(n *node)
	}{
		{"no coracled", killDaemon},
		{"no shim", killShims},
		{"neither", func(n *node) { killDaemon(n); killShims(n) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t, testkit.Options{})
			n.pull("busybox")
			p := n.runPod(nil)
			c := p.run(shell("main", "trap 'echo last words; exit 7' TERM; echo ready; while :; do sleep 0.05; done # gap-marker"))
			eventually(t, "the trap is set", func() bool { return strings.Contains(c.output(""), "ready") })
			pid := processWith(t, "gap-marker")
			keeper := n.Keepers()
			if len(keeper) != 1 {
				t.Fatalf("keepers %v", keeper)
			}
			halt(t, keeper[0])
			resumed := false
			resume := func() {
				if !resumed {
					resumed = true
					if err := syscall.Kill(keeper[0], syscall.SIGCONT); err != nil {
						t.Error(err)
					}
				}
			}
			defer resume()
			tc.victim(n)
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the container has exited", func() bool { return !running(pid) })
			resume()
			n.ready()
			if s := c.wait(); s.GetExitCode() != 7 {
				t.Errorf("exit code %d, want 7", s.GetExitCode())
			}
			eventually(t, "the last words are logged", func() bool { return c.output("stdout") == "ready\nlast words\n" })
			p.remove()
		})
	}
}

// processWith finds the process whose command line contains a marker. A child of it has the same
// command line until it executes its own program; the first of them is the one that was asked for.
func processWith(t *testing.T, marker string) int {
	t.Helper()
	for _, p := range testkit.Processes() {
		if strings.Contains(p.Line(), marker) {
			return p.PID
		}
	}
	t.Fatalf("no process with %q", marker)
	return 0
}

// halt stops a process as a hang would.
func halt(t *testing.T, pid int) {
	t.Helper()
	if err := testkit.Halt(pid); err != nil {
		t.Fatal(err)
	}
}

// running says whether a process is there and not a zombie.
func running(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(raw), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

// Whatever is under way when something dies either happens or does not: a retry
// succeeds, and at the end nothing is left.
func TestKillDuringOperations(t *testing.T) {
	for _, v := range victims[:4] {
		t.Run(v.name, func(t *testing.T) {
			n := newNode(t, testkit.Options{})
			n.pull("busybox")
			n.warm()
			check := n.noLeaks()
			for i := range 6 {
				// From right at the call to well after its end.
				delay := time.Duration(i*i) * 2 * time.Millisecond
				killWhile(t, n, v, delay, "start", func() { retryLife(t, n) })
			}
			check()
		})
	}
}

// killWhile runs f and kills the victim some time after its begin.
func killWhile(t *testing.T, n *node, v victim, after time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-time.After(after)
	v.kill(n)
	select {
	case <-done:
	case <-time.After(2 * callTimeout):
		t.Fatalf("%s after a kill at %v: hangs", what, after)
	}
	n.ready()
}

// retryLife takes a pod through its life, each call repeated until it succeeds, as
// the kubelet does.
func retryLife(t *testing.T, n *node) { retryLifeWith(t, n, cri.NamespaceMode_CONTAINER) }

// retryLifeWith is retryLife with a choice of the PID namespace.
func retryLifeWith(t *testing.T, n *node, pid cri.NamespaceMode) {
	config := n.podConfig()
	config.Linux.SecurityContext.NamespaceOptions.Pid = pid
	var podID, id string
	again(t, n, "RunPodSandbox", func() error {
		r, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: n.handler})
		podID = r.GetPodSandboxId()
		return err
	})
	conf := shell("main", forever)
	conf.Linux.SecurityContext.NamespaceOptions.Pid = pid
	again(t, n, "create and start", func() error {
		conf.Metadata.Attempt++ // as the kubelet does: what is left of a try goes with its pod
		r, err := n.CreateContainer(n.ctx(), &cri.CreateContainerRequest{PodSandboxId: podID, SandboxConfig: config, Config: conf})
		if err != nil {
			return err
		}
		id = r.GetContainerId()
		if _, err = n.StartContainer(n.ctx(), &cri.StartContainerRequest{ContainerId: id}); err == nil {
			return nil
		}
		// The start may have worked, and only its answer been lost.
		s, serr := n.ContainerStatus(n.ctx(), &cri.ContainerStatusRequest{ContainerId: id})
		if serr == nil && s.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING {
			return nil
		}
		return err
	})
	again(t, n, "ExecSync", func() error {
		_, err := n.ExecSync(n.ctx(), &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}, Timeout: callSeconds})
		return err
	})
	again(t, n, "StopPodSandbox", func() error {
		_, err := n.StopPodSandbox(n.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: podID})
		return err
	})
	again(t, n, "RemovePodSandbox", func() error {
		_, err := n.RemovePodSandbox(n.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: podID})
		return err
	})
}

// again repeats a call until it succeeds, or fails with what a client need not try again.
func again(t *testing.T, n *node, what string, call func() error) {
	end := time.Now().Add(callTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := call()
		if err == nil {
			return
		}
		if !passes(err) || time.Now().After(end) {
			t.Errorf("%s: %v", what, err)
			return
		}
		<-tick.C
	}
}

// passes reports whether an error is one that docs/operations.md tells clients to repeat the call
// after, or the fault that the test itself makes. Any other code is final, and must not come of a
// process that died.
func passes(err error) bool {
	return status.Code(err) == codes.Unavailable || status.Code(err) == codes.Unknown &&
		strings.Contains(err.Error(), fault.ErrInjected.Error())
}

func TestKillDuringPull(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.warm()
	check := n.noLeaks()
	for i := range 6 {
		killWhile(t, n, victims[0], time.Duration(i*i)*3*time.Millisecond, "pull", func() {
			again(t, n, "PullImage", func() error {
				_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testRef("web")}})
				return err
			})
		})
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef("web")}}); err != nil {
			t.Error(err)
		}
	}
	check()
}

// SIGTERM ends coracled and nothing else; the next one finds everything.
func TestTerminateAndStart(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", forever))
	before := c.status()
	if err := n.Terminate(); err != nil {
		t.Fatal(err)
	}
	if n.PID() != 0 {
		t.Error("coracled was started again after SIGTERM")
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	after := c.status()
	if after.GetStartedAt() != before.GetStartedAt() || after.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("status was %v, is %v", before, after)
	}
	c.exec("true")
	p.remove()
}
