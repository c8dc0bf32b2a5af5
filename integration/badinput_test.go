package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Every call that names a thing that is not there, or asks for what cannot be: the
// code the kubelet expects, and nothing changes.
func TestBadInput(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	stopped := n.runPod(nil)
	stopped.stop()
	p := n.runPod(nil)
	running := p.run(shell("running", "exec sleep 3600")) // no child that starts after the snapshot
	exited := p.run(shell("exited", "true"))
	exited.wait()
	check := n.noLeaks()

	create := func(pod *pod, change func(*cri.ContainerConfig)) error {
		c := shell("bad", forever)
		change(c)
		_, err := n.CreateContainer(n.ctx(), &cri.CreateContainerRequest{PodSandboxId: pod.id, Config: c, SandboxConfig: pod.config})
		return err
	}
	run := func(change func(*cri.PodSandboxConfig)) error {
		c := n.podConfig()
		change(c)
		_, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: c})
		return err
	}
	const none = "0123456789abcdef"
	for _, tc := range []struct {
		name string
		code string // "OK": idempotent
		call func(ctx context.Context) error
	}{
		{"status of unknown pod", "NotFound", func(ctx context.Context) error {
			_, err := n.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: none})
			return err
		}},
		{"stop unknown pod", "OK", func(ctx context.Context) error {
			_, err := n.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: none})
			return err
		}},
		{"remove unknown pod", "OK", func(ctx context.Context) error {
			_, err := n.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: none})
			return err
		}},
		{"forward a port of unknown pod", "NotFound", func(ctx context.Context) error {
			_, err := n.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: none, Port: []int32{80}})
			return err
		}},
		{"status of unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: none})
			return err
		}},
		{"start unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: none})
			return err
		}},
		{"stop unknown container", "OK", func(ctx context.Context) error {
			_, err := n.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: none})
			return err
		}},
		{"remove unknown container", "OK", func(ctx context.Context) error {
			_, err := n.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: none})
			return err
		}},
		{"exec in unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: none, Cmd: []string{"true"}})
			return err
		}},
		{"streamed exec in unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.Exec(ctx, &cri.ExecRequest{ContainerId: none, Cmd: []string{"true"}, Stdout: true})
			return err
		}},
		{"attach to unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.Attach(ctx, &cri.AttachRequest{ContainerId: none, Stdout: true})
			return err
		}},
		{"stats of unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: none})
			return err
		}},
		{"update unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: none, Linux: &cri.LinuxContainerResources{}})
			return err
		}},
		{"reopen log of unknown container", "NotFound", func(ctx context.Context) error {
			_, err := n.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: none})
			return err
		}},
		{"exec in exited container", "FailedPrecondition", func(ctx context.Context) error {
			_, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: exited.id, Cmd: []string{"true"}})
			return err
		}},
		{"exec of nothing", "InvalidArgument", func(ctx context.Context) error {
			_, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: running.id})
			return err
		}},
		{"exec past its timeout", "DeadlineExceeded", func(ctx context.Context) error {
			begin := time.Now()
			_, err := n.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: running.id, Cmd: []string{"sleep", "60"}, Timeout: 1})
			if took := time.Since(begin); took < time.Second || took > time.Second+soon {
				t.Errorf("an exec with a timeout of 1 s took %v", took)
			}
			return err
		}},
		{"start exited container", "FailedPrecondition", func(ctx context.Context) error {
			_, err := n.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: exited.id})
			return err
		}},
		{"create in unknown pod", "NotFound", func(ctx context.Context) error {
			_, err := n.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: none, Config: shell("x", "true"), SandboxConfig: p.config})
			return err
		}},
		{"create in stopped pod", "FailedPrecondition", func(context.Context) error {
			return create(stopped, func(*cri.ContainerConfig) {})
		}},
		{"create without image", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) { c.Image = nil })
		}},
		{"create of unknown image", "NotFound", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) { c.Image.Image = registry.Addr + "/test/none:1" })
		}},
		{"create without name", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) { c.Metadata = nil })
		}},
		{"create with log path out of the directory", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) { c.LogPath = "../../escaped.log" })
		}},
		{"create with missing mount source", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) {
				c.Mounts = []*cri.Mount{{HostPath: "relative/path", ContainerPath: "/x"}}
			})
		}},
		{"create with unknown capability", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) {
				c.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"NO_SUCH"}}
			})
		}},
		{"create with unknown user", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) { c.Linux.SecurityContext.RunAsUsername = "nobody-knows" })
		}},
		{"create with missing seccomp profile", "InvalidArgument", func(context.Context) error {
			return create(p, func(c *cri.ContainerConfig) {
				c.Linux.SecurityContext.Seccomp = &cri.SecurityProfile{
					ProfileType:  cri.SecurityProfile_Localhost,
					LocalhostRef: "/no/such/profile.json",
				}
			})
		}},
		{"run without config", "InvalidArgument", func(ctx context.Context) error {
			_, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{})
			return err
		}},
		{"run without name", "InvalidArgument", func(context.Context) error {
			return run(func(c *cri.PodSandboxConfig) { c.Metadata.Name = "" })
		}},
		{"run with unknown handler", "InvalidArgument", func(ctx context.Context) error {
			_, err := n.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: n.podConfig(), RuntimeHandler: "no-such"})
			return err
		}},
		{"run with a sysctl of the host", "InvalidArgument", func(context.Context) error {
			return run(func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} })
		}},
		{"run with relative log directory", "InvalidArgument", func(context.Context) error {
			return run(func(c *cri.PodSandboxConfig) { c.LogDirectory = "logs" })
		}},
		{"run with impossible port", "InvalidArgument", func(context.Context) error {
			return run(func(c *cri.PodSandboxConfig) {
				c.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: 70000}}
			})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { wantCode(t, tc.name, tc.call(n.ctx()), tc.code) })
	}
	check()

	// The command cannot be executed: StartContainer says so, the container shows it.
	c := p.create(func() *cri.ContainerConfig {
		c := shell("noexec", "")
		c.Command = []string{"/no/such/program"}
		return c
	}())
	_, err := n.StartContainer(n.ctx(), &cri.StartContainerRequest{ContainerId: c.id})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("start of a missing program: %v", err)
	}
	if s := c.status(); s.GetState() != cri.ContainerState_CONTAINER_EXITED || s.GetExitCode() == 0 {
		t.Errorf("after a failed start: %v", s)
	}
	c.remove()
	p.remove()
	stopped.remove()
}
