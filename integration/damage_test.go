package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// A container keeps running when a restarted daemon cannot read its record, or its pod's. It is
// shown as unmanaged, and gone when it is removed by its id.
func TestDamagedRecord(t *testing.T) {
	for _, kind := range []string{"pod", "container"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, testkit.Options{})
			n.pull("busybox")
			n.warm()
			check := n.noLeaks()
			p := n.runPod(nil)
			c := p.run(shell("writer", trap+"while :; do echo tick; usleep 10000; done"))
			id, file := c.id, filepath.Join(n.State, "containers", c.id, "container.json")
			if kind == "pod" {
				id, file = p.id, filepath.Join(n.State, "pods", p.id, "pod.json")
			}
			eventually(t, "the container writes", func() bool { return logSize(c) > 0 })
			if err := os.Truncate(file, 100); err != nil {
				t.Fatal(err)
			}
			killDaemon(n)
			n.ready()
			size := logSize(c)
			eventually(t, "the container keeps writing", func() bool { return logSize(c) > size+1000 })
			list, err := n.ListContainers(n.ctx(), &cri.ListContainersRequest{})
			if err != nil || len(list.GetContainers()) != 0 {
				t.Errorf("listed: %v, %v", list, err)
			}
			if out := n.Crictl(t, "info"); !strings.Contains(out, "unexpected end of JSON input") || !strings.Contains(out, id) {
				t.Errorf("crictl info does not report it:\n%s", out)
			}
			if kind == "pod" {
				n.Crictl(t, "rmp", id)
			} else {
				n.Crictl(t, "rm", id)
				p.remove()
			}
			if out := n.Crictl(t, "info"); strings.Contains(out, id) {
				t.Errorf("still unmanaged:\n%s", out)
			}
			check()
		})
	}
}

// On a full state directory pods can be stopped and removed, but not started.
func TestFullStateDirectory(t *testing.T) {
	n := newNode(t, testkit.Options{StateSize: "24m"})
	n.pull("busybox")
	n.warm()
	check := n.noLeaks()
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: 23456}} // must be freed at once
	})
	stopped := p.run(shell("stopped", trap+"echo ready; while :; do sleep 3600 & wait; done"))
	running := p.run(shell("running", forever))
	eventually(t, "the container waits for SIGTERM", func() bool { return stopped.output("stdout") == "ready\n" })
	eventually(t, "nothing is left of the pod before", func() bool {
		left, err := filepath.Glob(filepath.Join(n.State, "network", "bridge", "*.json"))
		return err == nil && len(left) == 1
	})
	filling := filepath.Join(n.State, "filling")
	fill(t, filling)
	_, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: n.podConfig()})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "state directory "+n.State+" is full") {
		t.Errorf("a pod on a full state directory: %v", err)
	}
	stopped.stop()
	if s := stopped.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 0 {
		t.Errorf("stopped container: %v", s)
	}
	fill(t, filling)
	stopped.remove()
	fill(t, filling)
	killDaemon(n)
	n.ready()
	if s := running.status(); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("running container: %v", s)
	}
	p.stop()
	p.remove()
	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	n.runPod(nil).remove()
	check()
}

// Containers and pods can also be stopped and removed on a full root directory, of which 128 MiB
// are always kept from images.
func TestFullRootDirectory(t *testing.T) {
	n := newNode(t, testkit.Options{RootSize: "200m"})
	n.pull("busybox")
	n.warm()
	check := n.noLeaks()
	p := n.runPod(nil)
	c := p.run(shell("full", trap+"echo ready; while :; do sleep 3600 & wait; done"))
	eventually(t, "the container waits for SIGTERM", func() bool { return c.output("stdout") == "ready\n" })
	filling := filepath.Join(n.Root, "filling")
	fill(t, filling)
	_, err := n.CreateContainer(n.ctx(),
		&cri.CreateContainerRequest{PodSandboxId: p.id, Config: shell("more", forever), SandboxConfig: p.config})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), n.Root) {
		t.Errorf("a container on a full root directory: %v", err)
	}
	c.stop()
	if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 0 {
		t.Errorf("stopped container: %v", s)
	}
	fill(t, filling)
	c.remove()
	fill(t, filling)
	p.remove()
	if err := os.Remove(filling); err != nil {
		t.Fatal(err)
	}
	check()
}

// fill fills the rest of a file system with one file.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		_, err := f.Write(block)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOSPC):
			block = block[:len(block)/4]
		default:
			t.Fatal(err)
		}
	}
}
