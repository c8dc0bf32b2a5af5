package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	"github.com/coracle-project/coracle/cmd/coracle/usage"
)

// between is the time between the two readings that rates are computed from. The daemon reads
// a thing once a second at most, and one after another: a second alone would now and then bring the
// same reading again.
const between = 1100 * time.Millisecond

func (w *workload) statsCommand() *cobra.Command {
	var (
		format output.Format
		chosen selection
		pods   bool
	)
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "print what containers use",
		Long: `Print what the running containers use in one second: cores, working set with its limit
if there is one, and the size of the writable layer. With -p, print the same for whole
pods, with their processes and network. 'coracle top' refreshes it. If the machine has several
nodes, all are asked.`,
		Example: `  coracle stats
  coracle stats -p -n kube-system
  coracle stats -o json | jq 'map(.memoryBytes) | add'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, missing := w.usageOfAll(cmd, func(ctx context.Context, _ string, c runtimeapi.RuntimeServiceClient) ([]usage.Usage, error) {
				return readTwice(ctx, c)
			})
			shown := []usage.Usage{}
			for _, u := range all {
				if (u.Container == "") == pods && chosen.matchesUsage(&u) {
					shown = append(shown, u)
				}
			}
			if missing != nil && len(shown) == 0 {
				return missing
			}
			return errors.Join(missing, format.Print(cmd.OutOrStdout(), shown, func(out io.Writer) { statsRows(out, shown, pods) }))
		},
	}
	cmd.Flags().BoolVarP(&pods, "pods", "p", false, "pods instead of containers")
	format.Define(cmd)
	chosen.define(w, cmd)
	return cmd
}

func (s *selection) matchesUsage(u *usage.Usage) bool {
	return s.matches(&runtimeapi.PodSandbox{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: u.Namespace}, Labels: u.Labels})
}

// readTwice returns the second of two readings.
func readTwice(ctx context.Context, c runtimeapi.RuntimeServiceClient) ([]usage.Usage, error) {
	var m usage.Meter
	if _, err := m.Read(ctx, c); err != nil {
		return nil, err
	}
	select {
	case <-time.After(between):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return m.Read(ctx, c)
}

// usageOfAll reads what is used on each node that this machine has. It is nil only if no node
// answers.
func (w *workload) usageOfAll(cmd *cobra.Command,
	read func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient) ([]usage.Usage, error),
) ([]usage.Usage, error) {
	all, missing := onAll(w, cmd, func(ctx context.Context, n machineNode, c runtimeapi.RuntimeServiceClient) ([]usage.Usage, error) {
		var there []usage.Usage
		err := n.soon(ctx, func(ctx context.Context) (err error) {
			there, err = read(ctx, n.name, c)
			return err
		})
		for i := range there {
			there[i].Node = n.name
		}
		return there, err
	})
	answered := slices.ContainsFunc(all, func(there []usage.Usage) bool { return there != nil })
	if together := slices.Concat(all...); together != nil || !answered {
		return together, missing
	}
	return []usage.Usage{}, missing
}

func statsRows(out io.Writer, all []usage.Usage, pods bool) {
	row := output.NodeRow(out, slices.ContainsFunc(all, func(u usage.Usage) bool { return u.Node != "" }))
	if pods {
		row("NODE", "NAMESPACE", "POD", "CPU", "MEMORY", "LIMIT", "PROCESSES", "RECEIVED", "SENT", "DISK")
	} else {
		row("NODE", "NAMESPACE", "POD", "CONTAINER", "CPU", "MEMORY", "LIMIT", "DISK")
	}
	for _, u := range all {
		if pods {
			row(u.Node, u.Namespace, u.Pod, coresText(u.CPU), output.Size(int64(u.Memory)), limitText(u.MemoryLimit), u.Processes,
				rateText(u.Received), rateText(u.Sent), output.Size(int64(u.Disk)))
		} else {
			row(u.Node, u.Namespace, u.Pod, u.Container, coresText(u.CPU), output.Size(int64(u.Memory)), limitText(u.MemoryLimit),
				output.Size(int64(u.Disk)))
		}
	}
}

func coresText(c *float64) string {
	if c == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f", *c)
}

func limitText(bytes *uint64) string {
	if bytes == nil {
		return "-"
	}
	return output.Size(int64(*bytes))
}

func rateText(perSecond *float64) string {
	if perSecond == nil {
		return "-"
	}
	return output.Size(int64(*perSecond)) + "/s"
}
