package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// traced is a pod or container in the output of `coracle trace`, with the steps of its start.
type traced struct {
	Kind  string       `json:"kind"` // pod or container
	Name  string       `json:"name"`
	ID    string       `json:"id"`
	Steps []tracedStep `json:"steps"`
	// Engine is what the engine did during one of the steps, if Coracle's own made the container.
	Engine []tracedStep `json:"engineSteps,omitempty"`
}

// tracedStep is as coracled records it.
type tracedStep struct {
	What  string        `json:"what"`
	Began time.Time     `json:"began"`
	Took  time.Duration `json:"took"` // ns
}

func (s *tracedStep) end() time.Time { return s.Began.Add(s.Took) }

func (w *workload) traceCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "trace POD",
		Short: "show how a pod was started, step by step with times",
		Long: `Show how a pod and its containers were started: when each step started, after the
first one, and how long it took. coracled always records this for every pod. The time
between the steps belongs to the kubelet, or to a pull.`,
		Example: `  coracle trace web
  coracle trace kube-system/coredns-5d78c9869d-x2x9p
  coracle trace web -o json | jq '[.[].steps[].took] | add / 1e6'`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: w.complete(false, inventory.podNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			find := func(all inventory) (string, error) {
				p, err := all.pod(args[0])
				return p.GetId(), err
			}
			return w.lookFor(cmd, find, func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory) error {
				p, err := all.pod(args[0])
				if err != nil {
					return err
				}
				things, err := traces(ctx, c, all, p)
				if err != nil {
					return err
				}
				return format.Print(cmd.OutOrStdout(), things, func(out io.Writer) { traceRows(out, things) })
			})
		},
	}
	format.Define(cmd)
	return cmd
}

// traces asks for the steps of a pod and of its containers, the oldest first.
func traces(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory, p *runtimeapi.PodSandbox) ([]traced, error) {
	r, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId(), Verbose: true})
	if err != nil {
		return nil, err
	}
	pod := traced{Kind: "pod", Name: podName(p), ID: p.GetId()}
	if err := pod.stepsOf(r.GetInfo()); err != nil {
		return nil, err
	}
	things := []traced{pod}
	for i := len(all.containers) - 1; i >= 0; i-- {
		ctr := all.containers[i]
		if ctr.GetPodSandboxId() != p.GetId() {
			continue
		}
		r, err := c.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ctr.GetId(), Verbose: true})
		if err != nil {
			return nil, err
		}
		container := traced{Kind: "container", Name: ctr.GetMetadata().GetName(), ID: ctr.GetId()}
		if err := container.stepsOf(r.GetInfo()); err != nil {
			return nil, err
		}
		things = append(things, container)
	}
	return things, nil
}

// stepsOf puts the steps in a verbose status into t.
func (t *traced) stepsOf(info map[string]string) error {
	t.Steps = []tracedStep{}
	if err := json.Unmarshal([]byte(info["info"]), t); err != nil {
		return fmt.Errorf("coracled's answer has no steps: %w", err)
	}
	return nil
}

func traceRows(out io.Writer, things []traced) {
	output.Row(out, "AT", "TOOK", "STEP")
	var first time.Time
	for _, t := range things {
		for i := range t.Steps {
			if first.IsZero() || t.Steps[i].Began.Before(first) {
				first = t.Steps[i].Began
			}
		}
	}
	for _, t := range things {
		heading := fmt.Sprintf("%s %s (%s)", t.Kind, t.Name, shortID(t.ID))
		if len(t.Steps) == 0 {
			output.Row(out, "-", "-", heading+": it has no steps yet, or was made by an older coracled")
			continue
		}
		began, ended := t.Steps[0].Began, t.Steps[0].end()
		for i := range t.Steps {
			if e := t.Steps[i].end(); e.After(ended) {
				ended = e
			}
		}
		output.Row(out, millis(began.Sub(first)), millis(ended.Sub(began)), heading)
		for i := range t.Steps {
			s := &t.Steps[i]
			output.Row(out, millis(s.Began.Sub(first)), millis(s.Took), "  "+s.What)
			for _, e := range t.Engine {
				if !e.Began.Before(s.Began) && e.Began.Before(s.end()) {
					output.Row(out, millis(e.Began.Sub(first)), millis(e.Took), "    engine: "+e.What)
				}
			}
		}
	}
}

// millis is a duration in one unit, so that a column can be compared at a glance.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
}
