package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/authentication/user"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/kubelet/cri"
	"github.com/coracle-project/coracle/cluster/policy"
)

// policyTable is the nftables table of a cluster, of which a machine may have several. "coracle
// down" removes it by this name.
func policyTable(port int) string { return "coracle-policy-" + strconv.Itoa(port) }

// policiesOff is what status and doctor say of a cluster that enforces none.
const policiesOff = "off (--network-policies=false): a network plugin enforces NetworkPolicies, or nothing does"

// newPolicy makes what enforces network policies on a node. It writes Events, and the status of
// ClusterNetworkPolicies. Upstream has no role for these.
func newPolicy(p *nodeProcess, part *health.Part) (*policy.Policy, error) {
	set, err := p.as(user.KubeProxy)
	if err != nil {
		return nil, err
	}
	return policy.New(set, policy.Options{
		Table: policyTable(p.port), NodeName: p.name, Health: part, API: p.policyAPI, ForgetNodes: p.forgetNodes,
		LinkGroup: func(ctx context.Context) (uint32, error) { return linkGroup(ctx, p.cri) },
	})
}

// linkGroup asks the runtime for the group of its pods' links. Runtimes other than Coracle say
// nothing of it.
func linkGroup(ctx context.Context, endpoint string) (uint32, error) {
	runtime, err := cri.Dial(endpoint)
	if err != nil {
		return 0, err
	}
	defer runtime.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	status, err := runtime.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return 0, fmt.Errorf("ask the runtime at %s for its links: %w", endpoint, err)
	}
	text, exists := status.GetInfo()["linkGroup"]
	if !exists {
		return 0, nil
	}
	var group uint32
	if err := json.Unmarshal([]byte(text), &group); err != nil {
		return 0, fmt.Errorf("the runtime at %s tells its link group as %q: %w", endpoint, text, err)
	}
	return group, nil
}

func policyCommand(log *slog.Logger) *cobra.Command {
	var o policy.Options
	var pods []string
	cmd := alone(log, "policy", "enforce network policies for this node's pods, alone",
		func(ctx context.Context, set *client.Set) (run func() error, err error) {
			if o.PodRanges, err = networks("--pod-cidr", pods); err != nil {
				return nil, err
			}
			p, err := policy.New(set, o)
			return func() error { return p.Run(ctx) }, err
		})
	cmd.Long = `policy enforces NetworkPolicies and ClusterNetworkPolicies by nftables, for pods whose packets the node
routes, with any kubelet. Packets between pods of one bridge are only seen with the sysctls
net.bridge.bridge-nf-call-iptables and -ip6tables.

It needs the rights to list and watch pods, namespaces and networkpolicies, and to create events. For
ClusterNetworkPolicies it needs the rights to list and watch customresourcedefinitions and
clusternetworkpolicies, and to patch clusternetworkpolicies/status. Without the right to
customresourcedefinitions it enforces NetworkPolicies only, from a minute after its start on.

While the cluster has a policy, addresses in --pod-cidr that no pod is known to have can send and receive
nothing, so that a pod's first packet does not precede its policies.

Its rules stay when it ends, so that a restart opens nothing; "coracle-kube policy remove" removes them.`
	cmd.Example = `  coracle-kube policy --kubeconfig policy.kubeconfig --node-name worker-1 --pod-cidr 10.244.1.0/24
  coracle-kube policy remove`
	f := cmd.Flags()
	f.StringVar(&o.NodeName, "node-name", hostname(), "name of this node")
	f.StringSliceVar(&pods, "pod-cidr", nil,
		"networks of this node's pods (default: pods whose addresses the API does not tell yet are not isolated)")
	cmd.PersistentFlags().StringVar(&o.Table, "table", "coracle-policy", "name of the nftables table")
	cmd.AddCommand(&cobra.Command{
		Use:     "remove",
		Short:   "remove the rules that were left",
		Example: "  coracle-kube policy remove\n  coracle-kube policy remove --table coracle-policy-6443",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return policy.Cleanup(o.Table) },
	})
	return cmd
}
