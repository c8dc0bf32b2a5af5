package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/leak"
)

// callTimeout is when a CRI call, or a wait, gives up. Nothing is expected to take any part of it:
// on a machine that does other things, too, everything takes as long as it takes.
const callTimeout = 2 * time.Minute

// callSeconds is the same for a request that has a limit of its own.
const callSeconds = int64(callTimeout / time.Second)

// binDir is the repository's bin directory, of a path like bin/test/web.
func binDir(p string) string { return filepath.Dir(filepath.Dir(p)) }

// node is a daemon under test and a client of it.
type node struct {
	*testkit.Daemon
	*testkit.CRI
	t       testing.TB
	seq     int
	handler string // of pods
}

// newNode starts a daemon that knows the test registry. At the test's end
// everything that the daemon made has to be gone.
func newNode(t testing.TB, o testkit.Options) *node {
	t.Helper()
	o.Registries = append(o.Registries, registry.Addr)
	d := testkit.StartDaemon(t, o)
	return &node{Daemon: d, CRI: d.CRI(t), t: t}
}

// ctx is for one call.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	n.t.Cleanup(cancel)
	return ctx
}

// pull gets a test image ("busybox") and returns its reference.
func (n *node) pull(name string) string {
	n.t.Helper()
	ref := testRef(name)
	if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		n.t.Fatal(err)
	}
	return ref
}

func testRef(name string) string { return registry.Addr + "/test/" + name + ":1" }

// warm takes a pod with a container through its life: what is made once (rules,
// shim, directories) is not a leak. The image goes again.
func (n *node) warm() {
	n.t.Helper()
	conf := shell("warm", "true")
	conf.Image.Image = n.pull("pause")
	conf.Command = []string{"/pause"}
	p := n.runPod(nil)
	p.run(conf)
	p.remove()
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: conf.Image}); err != nil {
		n.t.Fatal(err)
	}
}

// noLeaks takes a snapshot; the returned function fails the test if anything is
// left: files under the state and root directories and descriptors of coracled and
// shim count too.
func (n *node) noLeaks() func() {
	n.t.Helper()
	// Ignore what grows with each request for good reasons. The keeper has a pidfd for each program
	// that is not its child, and this number differs from one keeper to the next. A shim that was
	// restarted may not yet have looked at a cgroup.
	ignore := func(line string) bool {
		return strings.Contains(line, n.Logs) || n.IsCgroupParent(line) || line == testkit.KeeperPidfds || line == testkit.ShimCgroupRoot
	}
	// The shim of a pod that has been removed may just be ending.
	eventually(n.t, "the shim has its starter, or has ended", func() bool { return len(n.Starters()) > 0 || len(n.Shims()) == 0 })
	before, err := leak.Take(leak.Scope{
		Dirs: []string{n.Root, n.State}, Cgroups: []string{n.Cgroup}, PIDs: n.Processes, Ignore: ignore,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return func() { n.t.Helper(); before.Check(n.t) }
}

// pod is a pod that runs.
type pod struct {
	n      *node
	id     string
	config *cri.PodSandboxConfig
}

// podConfig is a pod with nothing special, different each time.
func (n *node) podConfig() *cri.PodSandboxConfig {
	n.seq++
	name := fmt.Sprintf("pod-%d", n.seq)
	dir := filepath.Join(n.Logs, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: dir,
		Labels:       map[string]string{"test": "yes"},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    n.Cgroup,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
}

// runPod starts a pod; change may be nil.
func (n *node) runPod(change func(*cri.PodSandboxConfig)) *pod {
	n.t.Helper()
	c := n.podConfig()
	if change != nil {
		change(c)
	}
	r, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: c, RuntimeHandler: n.handler})
	if err != nil {
		n.t.Fatal(err)
	}
	return &pod{n, r.GetPodSandboxId(), c}
}

// status is the pod's status.
func (p *pod) status() *cri.PodSandboxStatus {
	p.n.t.Helper()
	r, err := p.n.PodSandboxStatus(p.n.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		p.n.t.Fatal(err)
	}
	return r.GetStatus()
}

// stop stops the pod.
func (p *pod) stop() {
	p.n.t.Helper()
	if _, err := p.n.StopPodSandbox(p.n.ctx(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.n.t.Fatal(err)
	}
}

// remove stops and removes the pod with all that is in it.
func (p *pod) remove() {
	p.n.t.Helper()
	p.stop()
	if _, err := p.n.RemovePodSandbox(p.n.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
		p.n.t.Fatal(err)
	}
}

// container is a container in a pod.
type container struct {
	p   *pod
	id  string
	log string
}

// shell is a container configuration that runs a script in busybox.
func shell(name, script string) *cri.ContainerConfig {
	return &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: testRef("busybox")},
		Command:  []string{"sh", "-c", script},
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
		},
	}
}

// trap ends a script with 0 at SIGTERM, once it has been executed: a test that stops a container
// waits for what the script prints after it.
const trap = "trap 'exit 0' TERM; "

// forever is a script that waits for SIGTERM.
const forever = trap + "while :; do sleep 3600 & wait; done"

// create creates a container.
func (p *pod) create(c *cri.ContainerConfig) *container {
	p.n.t.Helper()
	r, err := p.n.CreateContainer(p.n.ctx(), &cri.CreateContainerRequest{PodSandboxId: p.id, Config: c, SandboxConfig: p.config})
	if err != nil {
		p.n.t.Fatal(err)
	}
	return &container{p, r.GetContainerId(), filepath.Join(p.config.LogDirectory, c.LogPath)}
}

// run creates and starts a container.
func (p *pod) run(c *cri.ContainerConfig) *container {
	p.n.t.Helper()
	ctr := p.create(c)
	ctr.start()
	return ctr
}

func (c *container) start() {
	n := c.p.n
	n.t.Helper()
	if _, err := n.StartContainer(n.ctx(), &cri.StartContainerRequest{ContainerId: c.id}); err != nil {
		n.t.Fatal(err)
	}
}

func (c *container) status() *cri.ContainerStatus {
	n := c.p.n
	n.t.Helper()
	r, err := n.ContainerStatus(n.ctx(), &cri.ContainerStatusRequest{ContainerId: c.id})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.GetStatus()
}

// wait waits until the container has exited.
func (c *container) wait() *cri.ContainerStatus {
	c.p.n.t.Helper()
	var s *cri.ContainerStatus
	eventually(c.p.n.t, "container "+c.id+" exits", func() bool {
		s = c.status()
		return s.GetState() == cri.ContainerState_CONTAINER_EXITED
	})
	return s
}

// exec runs a command and returns what it printed and its exit code.
func (c *container) exec(command ...string) (stdout string, code int32) {
	n := c.p.n
	n.t.Helper()
	r, err := n.ExecSync(n.ctx(), &cri.ExecSyncRequest{ContainerId: c.id, Cmd: command, Timeout: callSeconds})
	if err != nil {
		n.t.Fatal(err)
	}
	return string(r.GetStdout()), r.GetExitCode()
}

// stop gives SIGTERM all the time it may take.
func (c *container) stop() { c.p.n.t.Helper(); c.stopWithin(callSeconds) }

// stopWithin gives SIGTERM a grace.
func (c *container) stopWithin(seconds int64) {
	n := c.p.n
	n.t.Helper()
	if _, err := n.StopContainer(n.ctx(), &cri.StopContainerRequest{ContainerId: c.id, Timeout: seconds}); err != nil {
		n.t.Fatal(err)
	}
}

func (c *container) remove() {
	n := c.p.n
	n.t.Helper()
	if _, err := n.RemoveContainer(n.ctx(), &cri.RemoveContainerRequest{ContainerId: c.id}); err != nil {
		n.t.Fatal(err)
	}
}

// output is what the log says that the container wrote to a stream ("" for both).
func (c *container) output(stream string) string {
	c.p.n.t.Helper()
	lines, err := testkit.ReadLog(c.log)
	if err != nil {
		c.p.n.t.Fatal(err)
	}
	return testkit.Text(lines, stream)
}

// eventually waits for a condition that nothing announces.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	within(t, callTimeout, what, cond)
}

// within is eventually for what takes its time.
func within(t testing.TB, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// overviews are the calls about everything, which nothing that hangs may hold up.
func (n *node) overviews() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Status": func(ctx context.Context) error {
			_, err := n.Status(ctx, &cri.StatusRequest{Verbose: true})
			return err
		},
		"ListPodSandbox": func(ctx context.Context) error {
			_, err := n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return err
		},
		"ListContainers": func(ctx context.Context) error {
			_, err := n.ListContainers(ctx, &cri.ListContainersRequest{})
			return err
		},
		"ListImages": func(ctx context.Context) error {
			_, err := n.Images.ListImages(ctx, &cri.ListImagesRequest{})
			return err
		},
		"ImageFsInfo": func(ctx context.Context) error {
			_, err := n.Images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
			return err
		},
		"ListContainerStats": func(ctx context.Context) error {
			_, err := n.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
			return err
		},
		"ListPodSandboxStats": func(ctx context.Context) error {
			_, err := n.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
			return err
		},
		"ListPodSandboxMetrics": func(ctx context.Context) error {
			_, err := n.ListPodSandboxMetrics(ctx, &cri.ListPodSandboxMetricsRequest{})
			return err
		},
	}
}
