package probe

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/util/format"
	"k8s.io/kubernetes/pkg/probe"
	execprobe "k8s.io/kubernetes/pkg/probe/exec"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"
	"k8s.io/utils/exec"
)

// newAsker returns what makes one probe, with upstream's probers.
func newAsker(run Exec) func(context.Context, Kind, *v1.Probe, Target) (probe.Result, string, error) {
	viaExec, viaTCP, viaGRPC := execprobe.New(), tcpprobe.New(), grpcprobe.New()
	viaHTTP := httpprobe.New(false) // redirects to other hosts are not followed
	return func(ctx context.Context, kind Kind, p *v1.Probe, t Target) (probe.Result, string, error) {
		timeout := time.Duration(p.TimeoutSeconds) * time.Second
		switch {
		case p.Exec != nil:
			command := kubecontainer.ExpandContainerCommandOnlyStatic(p.Exec.Command, t.Container.Env)
			return viaExec.Probe(&execCmd{run: func() ([]byte, error) { return run(ctx, t.ID, command, timeout) }})
		case p.HTTPGet != nil:
			req, err := httpprobe.NewRequestForHTTPGetAction(p.HTTPGet, t.Container, t.PodIP, "probe")
			if err != nil {
				return probe.Unknown, "", err
			}
			return viaHTTP.Probe(req, timeout)
		case p.TCPSocket != nil:
			port, err := probe.ResolveContainerPort(p.TCPSocket.Port, t.Container)
			if err != nil {
				return probe.Unknown, "", err
			}
			host := p.TCPSocket.Host
			if host == "" {
				host = t.PodIP
			}
			return viaTCP.Probe(host, port, timeout)
		case p.GRPC != nil:
			service := ""
			if p.GRPC.Service != nil {
				service = *p.GRPC.Service
			}
			return viaGRPC.Probe(t.PodIP, service, int(p.GRPC.Port), timeout)
		default:
			return probe.Unknown, "", fmt.Errorf("missing probe handler for %s:%s", format.Pod(t.Pod), t.Container.Name)
		}
	}
}

// execCmd is a command in a container in the shape that upstream's exec prober runs: it starts it
// and reads what it wrote. The methods that the prober does not call come from the nil interface.
type execCmd struct {
	exec.Cmd
	run func() ([]byte, error)
	out io.Writer
}

func (c *execCmd) SetStdout(w io.Writer) { c.out = w }
func (c *execCmd) SetStderr(io.Writer)   {}
func (c *execCmd) Wait() error           { return nil }

func (c *execCmd) Start() error {
	output, err := c.run()
	if c.out != nil {
		_, _ = io.Copy(c.out, bytes.NewReader(output))
	}
	return err
}
