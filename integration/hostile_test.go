package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/spoil"
)

// ours says whether an answer is our fault, or did not come.
func ours(err error) bool {
	switch status.Code(err) {
	case codes.Internal, codes.Unavailable, codes.DeadlineExceeded, codes.DataLoss:
		return true
	}
	return false
}

// below has a path of the host that the runtime makes, or looks through, for the caller lie below
// dir, where the test can take it away. Those that are no absolute paths, and those that lead out
// again, are left as they are: they have to be refused.
func below(dir, path string) string {
	if !strings.HasPrefix(path, "/") || strings.Contains(path, "..") || strings.HasPrefix(path, dir) {
		return path
	}
	return dir + path
}

// Pods with one field spoilt each: they run or are refused, and nothing of either kind stays.
func TestSpoiltPods(t *testing.T) {
	n := newNode(t, testkit.Options{LogLevel: "error"})
	n.pull("busybox")
	n.warm()
	base := n.podConfig()
	base.DnsConfig = &cri.DNSConfig{Servers: []string{"10.0.0.10"}}
	base.PortMappings = []*cri.PortMapping{{ContainerPort: 80}}
	base.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
	check := n.noLeaks()
	dir := t.TempDir()
	for what, m := range spoil.Each(&cri.RunPodSandboxRequest{Config: base}, dir) {
		request := m.(*cri.RunPodSandboxRequest)
		if c := request.GetConfig(); c != nil {
			c.LogDirectory = below(dir, c.LogDirectory)
			if l := c.GetLinux(); l != nil {
				l.CgroupParent = below(n.Cgroup, l.CgroupParent)
			}
		}
		r, err := n.RunPodSandbox(n.ctx(), request)
		if ours(err) {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			continue
		}
		if _, err := n.RemovePodSandbox(n.ctx(), &cri.RemovePodSandboxRequest{PodSandboxId: r.GetPodSandboxId()}); err != nil {
			t.Errorf("%s: remove: %v", what, err)
		}
	}
	check()
}

// Containers with one field spoilt each, none of which is started.
func TestSpoiltContainers(t *testing.T) {
	n := newNode(t, testkit.Options{LogLevel: "error"})
	n.pull("busybox")
	n.warm()
	n.pull("busybox")
	p := n.runPod(nil)
	// The pod's init stays with the pod once a container wants to share processes.
	sharing := shell("sharing", "true")
	sharing.Linux.SecurityContext.NamespaceOptions.Pid = cri.NamespaceMode_POD
	if _, err := n.RemoveContainer(n.ctx(), &cri.RemoveContainerRequest{ContainerId: p.create(sharing).id}); err != nil {
		t.Fatal(err)
	}
	base := shell("main", "true")
	base.Envs = []*cri.KeyValue{{Key: "A", Value: []byte("b")}}
	base.Mounts = []*cri.Mount{{ContainerPath: "/image", Image: &cri.ImageSpec{Image: testRef("busybox")}, ImageSubPath: "bin"}}
	dir := t.TempDir()
	base.Mounts = append(base.Mounts, &cri.Mount{ContainerPath: "/host", HostPath: dir})
	base.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x"}}
	base.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 100}
	base.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"CHOWN"}}
	check := n.noLeaks()
	request := &cri.CreateContainerRequest{PodSandboxId: p.id, Config: base}
	for what, m := range spoil.Each(request, dir) {
		request := m.(*cri.CreateContainerRequest)
		for _, m := range request.GetConfig().GetMounts() {
			m.HostPath = below(dir, m.HostPath)
		}
		for _, d := range request.GetConfig().GetDevices() {
			if d.HostPath != "/dev/null" {
				d.HostPath = below(dir, d.HostPath)
			}
		}
		r, err := n.CreateContainer(n.ctx(), request)
		if ours(err) {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			continue
		}
		if _, err := n.RemoveContainer(n.ctx(), &cri.RemoveContainerRequest{ContainerId: r.GetContainerId()}); err != nil {
			t.Errorf("%s: remove: %v", what, err)
		}
	}
	check()
	p.remove()
}

// Calls about a container that runs, with one field spoilt each: it goes on, and nothing of them
// stays.
func TestSpoiltCallsAboutAContainer(t *testing.T) {
	n := newNode(t, testkit.Options{LogLevel: "error"})
	n.pull("busybox")
	n.warm()
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", forever))
	limits := &cri.LinuxContainerResources{
		CpuShares: 100, CpuPeriod: 100_000, CpuQuota: 50_000, MemoryLimitInBytes: 1 << 28, CpusetCpus: "0",
		HugepageLimits: []*cri.HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}},
	}
	call := func(m proto.Message) (err error) {
		switch r := m.(type) {
		case *cri.UpdateContainerResourcesRequest:
			_, err = n.UpdateContainerResources(n.ctx(), r)
		case *cri.UpdatePodSandboxResourcesRequest:
			_, err = n.UpdatePodSandboxResources(n.ctx(), r)
		case *cri.ReopenContainerLogRequest:
			_, err = n.ReopenContainerLog(n.ctx(), r)
		case *cri.ExecSyncRequest:
			_, err = n.ExecSync(n.ctx(), r)
		case *cri.ExecRequest:
			_, err = n.Exec(n.ctx(), r)
		case *cri.AttachRequest:
			_, err = n.Attach(n.ctx(), r)
		}
		return err
	}
	requests := []proto.Message{
		&cri.UpdateContainerResourcesRequest{ContainerId: c.id, Linux: limits, Annotations: map[string]string{"a": "b"}},
		&cri.UpdatePodSandboxResourcesRequest{PodSandboxId: p.id, Overhead: limits, Resources: limits},
		&cri.ReopenContainerLogRequest{ContainerId: c.id},
		&cri.ExecSyncRequest{ContainerId: c.id, Cmd: []string{"true"}},
		&cri.ExecRequest{ContainerId: c.id, Cmd: []string{"true"}, Stdout: true},
		&cri.AttachRequest{ContainerId: c.id, Stdout: true},
	}
	for _, r := range requests {
		if err := call(r); err != nil {
			t.Fatalf("%T: %v", r, err)
		}
	}
	check := n.noLeaks()
	for _, r := range requests {
		for what, m := range spoil.Each(r, t.TempDir()) {
			if err := call(m); ours(err) {
				t.Errorf("%T %s: %v", r, what, err)
			}
		}
	}
	if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %s: %s", s.GetState(), s.GetReason())
	}
	check()
	p.remove()
}
