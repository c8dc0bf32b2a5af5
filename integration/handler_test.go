package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

const runc = "/usr/sbin/runc"

// handlerConfig is a configuration with one handler, "other".
func handlerConfig(runtime string) string {
	return fmt.Sprintf("[runtime.handler.other]\nruntime = %q\nannotations = [\"boat.*\"]\nprivileged_without_host_devices = true\n", runtime)
}

// newHandlerNode is a node whose pods have a handler of its own.
func newHandlerNode(t *testing.T, o testkit.Options, runtime string) *node {
	t.Helper()
	o.Config = handlerConfig(runtime)
	n := newNode(t, o)
	n.handler = "other"
	return n
}

// TestHandlers: a pod's life with containers that other runtimes make is no other, whatever is
// killed meanwhile.
func TestHandlers(t *testing.T) {
	for name, runtime := range map[string]string{
		"runc": "oci:" + runc,
		"crun": "oci:" + testkit.Crun(t),
		"shim": "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2"),
	} {
		t.Run(name, func(t *testing.T) {
			n := newHandlerNode(t, testkit.Options{}, runtime)
			n.pull("busybox")
			n.warm()
			check := n.noLeaks()
			p := n.runPod(func(c *cri.PodSandboxConfig) {
				c.Annotations = map[string]string{"boat.example": "yes", "secret": "no"}
				c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
			})
			conf := shell("main", trap+"echo out; echo err >&2; "+forever)
			conf.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_POD}
			c := p.run(conf)
			eventually(t, "the container logs", func() bool {
				lines, _ := testkit.ReadLog(c.log)
				return len(lines) == 2
			})
			raw, err := os.ReadFile(filepath.Join(n.State, "containers", c.id, "config.json"))
			if err != nil || !strings.Contains(string(raw), `"boat.example":"yes"`) || strings.Contains(string(raw), "secret") {
				t.Errorf("annotations in the spec: %v, %v", err, string(raw))
			}
			for _, v := range victims {
				v.kill(n)
				n.ready()
				if out, code := c.exec("sh", "-c", "hostname; exit 3"); out != p.config.Hostname+"\n" || code != 3 {
					t.Errorf("exec after the death of %s = %q, %d", v.name, out, code)
				}
			}
			if out, _ := c.exec("cat", "/proc/1/cmdline"); out != "/coracle-pod-init\x00" {
				t.Errorf("process 1 is %q", out)
			}
			if s := p.status(); s.GetRuntimeHandler() != "other" || s.GetState() != cri.PodSandboxState_SANDBOX_READY {
				t.Errorf("pod status %v", s)
			}
			failing := p.run(shell("seven", "exit 7"))
			if s := failing.wait(); s.GetExitCode() != 7 || s.GetReason() != "Error" {
				t.Errorf("exit code %d, reason %q", s.GetExitCode(), s.GetReason())
			}
			hungry := shell("hungry", "exec tail /dev/zero")
			hungry.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 32 << 20}
			if s := p.run(hungry).wait(); s.GetReason() != "OOMKilled" {
				t.Errorf("reason %q, exit code %d", s.GetReason(), s.GetExitCode())
			}
			missing := shell("missing", "")
			missing.Command = []string{"/no/such/program"}
			m := p.create(missing)
			if _, err := n.StartContainer(n.ctx(), &cri.StartContainerRequest{ContainerId: m.id}); err == nil {
				t.Error("a program that is not there was started")
			}
			if s := m.status(); s.GetReason() != "StartError" || s.GetExitCode() != 127 && s.GetExitCode() != 128 {
				t.Errorf("reason %q, exit code %d", s.GetReason(), s.GetExitCode())
			}
			c.stop()
			if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 0 {
				t.Errorf("after stop: %v", s)
			}
			p.remove()
			check()
		})
	}
}

func TestStatsOfHandler(t *testing.T) {
	statsAndUpdate(t, newHandlerNode(t, testkit.Options{}, "oci:"+runc))
}

func TestStatusOfHandlers(t *testing.T) {
	n := newHandlerNode(t, testkit.Options{}, "oci:"+runc)
	r, err := n.Status(n.ctx(), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range r.GetRuntimeHandlers() {
		names = append(names, h.GetName())
		// Debian's runc 1.1 knows rro, and no mounts with mapped ids.
		if h.GetName() == "other" && (!h.GetFeatures().GetRecursiveReadOnlyMounts() || h.GetFeatures().GetUserNamespaces()) {
			t.Errorf("features %v", h.GetFeatures())
		}
	}
	if got := strings.Join(names, ","); got != ",coracle,other" {
		t.Errorf("handlers %q", got)
	}
}

// TestHandlerSnapshotter: a handler's containers have roots of its own driver, of layers that a
// pull for it has copied there; they survive the daemon, and all of it goes with the image.
func TestHandlerSnapshotter(t *testing.T) {
	n := newNode(t, testkit.Options{Config: "[runtime.handler.copied]\nruntime = \"coracle\"\nsnapshotter = \"native\"\n"})
	ref := testRef("busybox")
	layers := func() int {
		found, err := filepath.Glob(filepath.Join(n.Root, "snapshotters", "native", "layers", "sha256", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	n.pull("busybox")
	if layers() != 0 {
		t.Errorf("%d layers copied before anybody wants them", layers())
	}
	pull := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref, RuntimeHandler: "copied"}}
	if _, err := n.Images.PullImage(n.ctx(), pull); err != nil {
		t.Fatal(err)
	}
	if layers() == 0 {
		t.Error("a pull for the handler has not copied the layers")
	}
	const root = "grep ' / ' /proc/mounts | grep -c overlay"
	own := n.runPod(nil)
	if out, _ := own.run(shell("main", forever)).exec("sh", "-c", root); out != "1\n" {
		t.Errorf("the root of an ordinary container is no overlay: %q", out)
	}
	n.handler = "copied"
	p := n.runPod(nil)
	c := p.run(shell("main", "echo kept >/file; "+forever))
	if out, _ := c.exec("sh", "-c", root); out != "0\n" {
		t.Errorf("the root of the handler's container is an overlay: %q", out)
	}
	killDaemon(n)
	n.ready()
	if out, _ := c.exec("cat", "/file"); out != "kept\n" {
		t.Errorf("after a restart the root has %q", out)
	}
	p.remove()
	own.remove()
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copies go with the image", func() bool { return layers() == 0 })
}
