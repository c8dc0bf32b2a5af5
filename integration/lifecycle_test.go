package integration

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// scopes are the values of shim.scope; what users see is the same with both.
var scopes = []string{"node", "pod"}

func TestPodLifecycle(t *testing.T) {
	for _, scope := range scopes {
		t.Run(scope, func(t *testing.T) {
			n := newNode(t, testkit.Options{Scope: scope})
			n.pull("busybox")
			n.warm()
			check := n.noLeaks()

			p := n.runPod(nil)
			if s := p.status(); s.GetState() != cri.PodSandboxState_SANDBOX_READY || s.GetNetwork().GetIp() == "" {
				t.Fatalf("pod status %v", s)
			}
			c := p.create(shell("main", trap+"echo out; echo err >&2; "+forever))
			if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_CREATED || s.GetStartedAt() != 0 {
				t.Errorf("after create: %v", s)
			}
			c.start()
			if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_RUNNING || s.GetStartedAt() == 0 {
				t.Errorf("after start: %v", s)
			}
			eventually(t, "the container logs", func() bool {
				lines, _ := testkit.ReadLog(c.log)
				return len(lines) == 2
			})
			if got := c.output("stderr"); got != "err\n" {
				t.Errorf("stderr = %q", got)
			}
			if out, code := c.exec("sh", "-c", "hostname; exit 3"); out != p.config.Hostname+"\n" || code != 3 {
				t.Errorf("exec = %q, %d", out, code)
			}
			c.stop()
			if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 0 || s.GetFinishedAt() < s.GetStartedAt() {
				t.Errorf("after stop: %v", s)
			}
			c.stop() // again: nothing happens
			c.remove()
			c.remove()
			p.remove()
			p.remove()
			check()
		})
	}
}

// The pod's init could not start where /run is mounted nodev, as with systemd.
func TestSharedPIDNamespace(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	pod := &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
	p := n.runPod(func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.NamespaceOptions = pod })
	var all []*container
	for _, name := range []string{"a", "b"} {
		conf := shell(name, forever)
		conf.Linux = &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: pod}}
		all = append(all, p.run(conf))
	}
	for _, c := range all {
		eventually(t, "process 1 has executed its program", func() bool {
			out, _ := c.exec("cat", "/proc/1/cmdline")
			return out == "/coracle-pod-init\x00"
		})
	}
	own, _ := all[0].exec("readlink", "/proc/self/ns/pid")
	if other, _ := all[1].exec("readlink", "/proc/self/ns/pid"); own == "" || own != other {
		t.Errorf("PID namespaces %q and %q", own, other)
	}
	p.remove()
}

func TestExitStatus(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	for _, tc := range []struct {
		name, script, reason string
		code                 int32
	}{
		{"zero", "exit 0", "Completed", 0},
		{"seven", "exit 7", "Error", 7},
		{"killed", "kill -9 $$", "Error", 137},
		{"aborted", "kill -ABRT $$", "Error", 134},
	} {
		c := p.run(shell(tc.name, tc.script))
		// A shell that is process 1 ignores signals that it sends to itself.
		if strings.HasPrefix(tc.script, "kill") {
			c.remove()
			c = p.run(shell(tc.name+"-child", "sh -c '"+tc.script+"'; exit $?"))
		}
		if s := c.wait(); s.GetExitCode() != tc.code || s.GetReason() != tc.reason {
			t.Errorf("%s: exit code %d, reason %q, want %d, %q", tc.name, s.GetExitCode(), s.GetReason(), tc.code, tc.reason)
		}
	}
	p.remove()
}

// soon is what a deadline may be exceeded by on a busy machine.
const soon = 15 * time.Second

// A container that ends on SIGTERM is waited for, is not killed, and does not use up its grace.
func TestStopWaitsForTheEnd(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("slow", "trap 'sleep 1; exit 3' TERM; echo ready; while :; do sleep 0.1; done"))
	eventually(t, "the trap is set", func() bool { return strings.Contains(c.output(""), "ready") })
	begin := time.Now()
	c.stop()
	if took := time.Since(begin); took < time.Second || took > time.Second+soon {
		t.Errorf("stop of a container that ends after 1 s took %v", took)
	}
	if s := c.status(); s.GetExitCode() != 3 {
		t.Errorf("exit code %d, want 3", s.GetExitCode())
	}
	p.remove()
}

func TestStopKillsAtDeadline(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("deaf", "trap '' TERM; echo ready; while :; do sleep 3600; done"))
	eventually(t, "the trap is set", func() bool { return strings.Contains(c.output(""), "ready") })
	begin := time.Now()
	c.stopWithin(1)
	if took := time.Since(begin); took < time.Second || took > time.Second+soon {
		t.Errorf("stop with a grace of 1 s took %v", took)
	}
	if s := c.status(); s.GetExitCode() != 137 {
		t.Errorf("exit code %d, want 137", s.GetExitCode())
	}
	p.remove()
}

func TestOOM(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	conf := shell("hungry", "exec tail /dev/zero")
	conf.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	c := p.run(conf)
	if s := c.wait(); s.GetReason() != "OOMKilled" || s.GetExitCode() != 137 {
		t.Errorf("reason %q, exit code %d", s.GetReason(), s.GetExitCode())
	}
	p.remove()
}

// Removing a pod takes running containers with it.
func TestRemoveRunningPod(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	n.warm()
	check := n.noLeaks()
	p := n.runPod(nil)
	p.run(shell("a", "while :; do sleep 3600; done"))
	p.run(shell("b", forever))
	p.create(shell("c", forever))
	if _, err := n.RemovePodSandbox(n.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	r, err := n.ListContainers(n.ctx(), &cri.ListContainersRequest{})
	if err != nil || len(r.GetContainers()) != 0 {
		t.Errorf("containers left: %v, %v", r.GetContainers(), err)
	}
	check()
}

func TestStatsAndUpdate(t *testing.T) { statsAndUpdate(t, newNode(t, testkit.Options{})) }

func statsAndUpdate(t *testing.T, n *node) {
	n.pull("busybox")
	p := n.runPod(nil)
	conf := shell("main", "dd if=/dev/zero of=/file bs=1M count=4 2>/dev/null; echo ready; "+forever)
	conf.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512}
	c := p.run(conf)
	eventually(t, "the file is written", func() bool { return strings.Contains(c.output(""), "ready") })
	r, err := n.ContainerStats(n.ctx(), &cri.ContainerStatsRequest{ContainerId: c.id})
	if err != nil {
		t.Fatal(err)
	}
	s := r.GetStats()
	if s.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || s.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("stats without use: %v", s)
	}
	if got := s.GetWritableLayer().GetUsedBytes().GetValue(); got < 4<<20 {
		t.Errorf("writable layer %d bytes after writing 4 MiB", got)
	}
	if _, err := n.UpdateContainerResources(n.ctx(), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20},
	}); err != nil {
		t.Error(err)
	}
	if got := c.status().GetResources().GetLinux().GetMemoryLimitInBytes(); got != 128<<20 {
		t.Errorf("memory limit %d after the update, want %d", got, 128<<20)
	}
	l, err := n.ListContainerStats(n.ctx(), &cri.ListContainerStatsRequest{})
	if err != nil || len(l.GetStats()) != 1 {
		t.Errorf("list of stats: %v, %v", l.GetStats(), err)
	}
	podStats(t, p)
	metrics(t, p, c)
	p.remove()
}

// podStats checks that every part of a pod's statistics was measured.
func podStats(t *testing.T, p *pod) {
	t.Helper()
	r, err := p.n.PodSandboxStats(p.n.ctx(), &cri.PodSandboxStatsRequest{PodSandboxId: p.id})
	if err != nil {
		t.Fatal(err)
	}
	s := r.GetStats().GetLinux()
	if s.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || s.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("pod without use: %v", s)
	}
	if s.GetNetwork().GetDefaultInterface().GetName() != "eth0" || s.GetProcess().GetProcessCount().GetValue() == 0 ||
		len(s.GetContainers()) != 1 {
		t.Errorf("pod's network, processes or containers: %v", s)
	}
	_, err = os.Stat("/proc/pressure/cpu")
	if counts := err == nil; counts != (s.GetContainers()[0].GetCpu().GetPsi() != nil) {
		t.Errorf("kernel counts pressure: %v; container: %v", counts, s.GetContainers()[0].GetCpu())
	}
}

// metrics checks some of the container's metrics.
func metrics(t *testing.T, p *pod, c *container) {
	t.Helper()
	r, err := p.n.ListPodSandboxMetrics(p.n.ctx(), &cri.ListPodSandboxMetricsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]uint64{}
	for _, pod := range r.GetPodMetrics() {
		for _, one := range pod.GetContainerMetrics() {
			if one.GetContainerId() != c.id {
				continue
			}
			for _, m := range one.GetMetrics() {
				values[m.GetName()] = m.GetValue().GetValue()
			}
		}
	}
	for _, name := range []string{
		"container_memory_working_set_bytes", "container_processes", "container_file_descriptors", "container_threads",
		"container_start_time_seconds", "container_fs_usage_bytes", "container_fs_limit_bytes", "container_ulimits_soft",
	} {
		if values[name] == 0 {
			t.Errorf("%s is 0 or missing", name)
		}
	}
	if got := values["container_spec_memory_limit_bytes"]; got != 128<<20 {
		t.Errorf("container_spec_memory_limit_bytes %d, want %d", got, 128<<20)
	}
}

func TestReopenLog(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", "echo one; while [ ! -e /go ]; do usleep 10000; done; echo two; "+forever))
	eventually(t, "the first line", func() bool { return strings.Contains(c.output(""), "one") })
	rotate(t, c)
	c.exec("touch", "/go")
	eventually(t, "the second line in the new file", func() bool { return c.output("") == "two\n" })
	p.remove()
}

// What reads memory answers while the shim hangs and a stop waits for it.
func TestAnswersWhileShimHangs(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", trap+"echo ready; "+forever))
	eventually(t, "the trap is set", func() bool { return strings.Contains(c.output(""), "ready") })
	shims := n.Shims()
	if len(shims) != 1 {
		t.Fatalf("shims %v", shims)
	}
	halt(t, shims[0])
	resume := sync.OnceFunc(func() {
		if err := syscall.Kill(shims[0], syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	defer resume()
	stopped := make(chan error, 1)
	go func() {
		_, err := n.StopContainer(n.ctx(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: callSeconds})
		stopped <- err
	}()
	eventually(t, "the stop is under way", func() bool {
		raw, err := os.ReadFile(filepath.Join(n.State, "containers", c.id, "container.json"))
		return err == nil && strings.Contains(string(raw), `"stopAt"`)
	})
	calls := n.overviews()
	maps.Copy(calls, map[string]func(context.Context) error{
		"Version": func(ctx context.Context) error { _, err := n.Version(ctx, &cri.VersionRequest{}); return err },
		"PodSandboxStatus": func(ctx context.Context) error {
			r, err := n.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true})
			if err == nil && r.GetStatus().GetState() != cri.PodSandboxState_SANDBOX_READY {
				err = errors.New(r.GetStatus().GetState().String())
			}
			return err
		},
		"ContainerStatus": func(ctx context.Context) error {
			r, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
			if err == nil && r.GetStatus().GetState() != cri.ContainerState_CONTAINER_RUNNING {
				err = errors.New(r.GetStatus().GetState().String())
			}
			return err
		},
		"ImageStatus": func(ctx context.Context) error {
			_, err := n.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}})
			return err
		},
	})
	for name, call := range calls {
		if err := call(n.ctx()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	resume()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 0 {
		t.Errorf("after the stop: %v", s)
	}
	p.remove()
}
