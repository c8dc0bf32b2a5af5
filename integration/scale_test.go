//go:build scale

package integration

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Two thousand pods, about twice what a bridge has ports for, start, are listed, answer, and stop
// without a trace.
func TestTwoThousandPods(t *testing.T) {
	const count, clients = 2000, 10
	n := newNode(t, testkit.Options{})
	n.warm()
	image := n.pull("pause")
	check := n.noLeaks()
	type one struct {
		config *cri.PodSandboxConfig
		id     string
	}
	pods := make([]one, count)
	for i := range pods {
		pods[i].config = n.podConfig()
	}
	all := func(what string, do func(ctx context.Context, p *one) error) {
		t.Helper()
		began := time.Now()
		var g errgroup.Group
		g.SetLimit(clients)
		for i := range pods {
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
				defer cancel()
				return do(ctx, &pods[i])
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s: %.1f s", what, time.Since(began).Seconds())
	}
	all("start", func(ctx context.Context, p *one) error {
		r, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: p.config})
		if err != nil {
			return err
		}
		p.id = r.PodSandboxId
		c, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.id, SandboxConfig: p.config, Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "pause"}, Image: &cri.ImageSpec{Image: image}, Command: []string{"/pause"}, LogPath: "log",
			Linux: &cri.LinuxContainerConfig{
				SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}},
			},
		}})
		if err != nil {
			return err
		}
		_, err = n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId})
		return err
	})
	began := time.Now()
	list, err := n.ListPodSandbox(n.ctx(), &cri.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != count {
		t.Fatalf("a list of %d pods, %v", len(list.GetItems()), err)
	}
	running := cri.ContainerState_CONTAINER_RUNNING
	containers, err := n.ListContainers(n.ctx(),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: running}}})
	if err != nil || len(containers.Containers) != count {
		t.Fatalf("a list of %d running containers, %v", len(containers.GetContainers()), err)
	}
	t.Logf("lists: %.3f s", time.Since(began).Seconds())
	ips := map[string]bool{}
	for _, p := range pods {
		s, err := n.PodSandboxStatus(n.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
		if err != nil {
			t.Fatal(err)
		}
		ips[s.Status.Network.Ip] = true
		for _, ip := range s.Status.Network.AdditionalIps {
			ips[ip.Ip] = true
		}
	}
	if len(ips) != 2*count || ips[""] {
		t.Errorf("%d pods have %d addresses", count, len(ips))
	}
	for ip := range ips {
		// No process listens there: the pod must refuse.
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(ip, "1"), callTimeout); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, %v", ip, c, err)
		}
	}
	all("stop", func(ctx context.Context, p *one) error {
		_, err := n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id})
		return err
	})
	all("remove", func(ctx context.Context, p *one) error {
		_, err := n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id})
		return err
	})
	check()
}
