package workload

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// podLine is a pod in the output of `coracle pods`.
type podLine struct {
	Node       string            `json:"node,omitempty"` // if the machine has several
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Namespace  string            `json:"namespace"`
	Attempt    uint32            `json:"attempt"`
	State      string            `json:"state"`
	IPs        []string          `json:"ips"`
	Handler    string            `json:"runtimeHandler"`
	Created    time.Time         `json:"created"`
	Labels     map[string]string `json:"labels"`
	Containers int               `json:"containers"`
	Running    int               `json:"running"`
}

func (w *workload) podsCommand() *cobra.Command {
	var format output.Format
	var chosen selection
	cmd := &cobra.Command{
		Use:   "pods",
		Short: "list the pods of this machine",
		Long: `List the pods of this machine's nodes, also ended ones until they are removed. RUNNING is the
number of a pod's containers that run.`,
		Example: `  coracle pods
  coracle pods -n kube-system
  coracle pods -l app=web -o json | jq -r '.[].ips[0]'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient, all inventory) ([]podLine, error) {
				there, err := podLines(ctx, c, all, &chosen)
				for i := range there {
					there[i].Node = node
				}
				return there, err
			}
			return listAll(w, cmd, &format, list, podRows)
		},
	}
	format.Define(cmd)
	chosen.define(w, cmd)
	return cmd
}

// podLines asks for the addresses of each pod, which lists do not tell. A pod that goes meanwhile
// is left out.
func podLines(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory, chosen *selection) ([]podLine, error) {
	lines := []podLine{}
	for _, p := range all.pods {
		if !chosen.matches(p) {
			continue
		}
		r, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		l := podLine{
			ID: p.GetId(), Name: p.GetMetadata().GetName(), Namespace: p.GetMetadata().GetNamespace(), Attempt: p.GetMetadata().GetAttempt(),
			State: "not ready", IPs: []string{}, Handler: p.GetRuntimeHandler(), Created: time.Unix(0, p.GetCreatedAt()).UTC(),
			Labels: p.GetLabels(),
		}
		if r.GetStatus().GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			l.State = "ready"
		}
		if n := r.GetStatus().GetNetwork(); n.GetIp() != "" {
			l.IPs = append(l.IPs, n.GetIp())
			for _, more := range n.GetAdditionalIps() {
				l.IPs = append(l.IPs, more.GetIp())
			}
		}
		for _, ctr := range all.containers {
			if ctr.GetPodSandboxId() != p.GetId() {
				continue
			}
			l.Containers++
			if ctr.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				l.Running++
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
}

func podRows(out io.Writer, lines []podLine) {
	row := output.NodeRow(out, slices.ContainsFunc(lines, func(l podLine) bool { return l.Node != "" }))
	row("NODE", "POD ID", "NAMESPACE", "NAME", "STATE", "RUNNING", "IP", "CREATED")
	for _, l := range lines {
		ips := strings.Join(l.IPs, ",")
		if ips == "" {
			ips = "-"
		}
		row(l.Node, shortID(l.ID), l.Namespace, l.Name, l.State, ratio(l.Running, l.Containers), ips, output.Ago(l.Created))
	}
}
