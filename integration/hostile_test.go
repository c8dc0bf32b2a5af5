package integration

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// outside says whether a field names a place on the host that the runtime makes for the caller:
// those of this test stay in its own directory.
func outside(what string) bool {
	return strings.Contains(what, "host_path") || strings.Contains(what, "log_directory") || strings.Contains(what, "cgroup_parent")
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
	for what, m := range spoil.Each(&cri.RunPodSandboxRequest{Config: base}, t.TempDir()) {
		if outside(what) {
			continue
		}
		r, err := n.RunPodSandbox(n.ctx(), m.(*cri.RunPodSandboxRequest))
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
	base.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "/dev/x"}}
	base.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 100}
	base.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"CHOWN"}}
	check := n.noLeaks()
	request := &cri.CreateContainerRequest{PodSandboxId: p.id, Config: base}
	for what, m := range spoil.Each(request, t.TempDir()) {
		if outside(what) {
			continue
		}
		r, err := n.CreateContainer(n.ctx(), m.(*cri.CreateContainerRequest))
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
