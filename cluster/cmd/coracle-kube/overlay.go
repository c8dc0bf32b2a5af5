package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/overlay"
	"github.com/coracle-project/coracle/cluster/overlay/paths"
	"github.com/coracle-project/coracle/cluster/overlay/wireguard"
)

// newOverlay returns what connects this node's pods with those of other nodes, or what removes the
// connections where the cluster gives nodes no networks: a network plugin connects pods there, or
// there is no other node.
func newOverlay(p *nodeProcess, part func() *health.Part) (func(context.Context) error, error) {
	encrypts := p.podNetwork == encryptedPodNetwork
	if !p.awaitRanges || !encrypts && p.podNetwork != autoPodNetwork {
		return cleaning(p.log, "paths to other nodes", func() error { return paths.Remove(p.port) }), nil
	}
	set, err := p.as(user.KubeProxy)
	if err != nil {
		return nil, err
	}
	o := overlay.Options{NodeName: p.name, Cluster: p.port, Pods: p.pods, Services: p.services}
	if encrypts {
		if o.Encryption, err = newEncryption(p); err != nil {
			return nil, err
		}
	}
	o.Health = part()
	return overlay.New(set, o).Run, nil
}

// newEncryption is called before the kubelet runs: from here on no pod of this node sends anything
// to those of others but encrypted.
func newEncryption(p *nodeProcess) (*overlay.Encryption, error) {
	set, err := p.as("system:node:"+p.name, user.NodesGroup)
	if err != nil {
		return nil, err
	}
	e, err := overlay.NewEncryption(filepath.Join(p.root, "wireguard.key"), set.Kube)
	if err != nil {
		return nil, fmt.Errorf("--pod-network %s: %w", encryptedPodNetwork, err)
	}
	return e, paths.Seal(p.port, p.pods)
}

// checkPodNetwork says what is wrong with a --pod-network, on this machine.
func checkPodNetwork(podNetwork string) error {
	switch podNetwork {
	case autoPodNetwork, noPodNetwork, cniPodNetwork:
		return nil
	case encryptedPodNetwork:
	default:
		return fmt.Errorf("--pod-network %q is unknown: give auto, none, cni or wireguard", podNetwork)
	}
	k, err := wireguard.Open()
	if err != nil {
		return fmt.Errorf("--pod-network %s: %w", encryptedPodNetwork, err)
	}
	k.Close()
	return nil
}

// The values of --pod-network.
const (
	autoPodNetwork = "auto"
	noPodNetwork   = "none"
	cniPodNetwork  = "cni"

	encryptedPodNetwork = clusterinfo.EncryptedPodNetwork
)

// overlayCommand removes what the overlay leaves in the kernel.
func overlayCommand() *cobra.Command {
	var cluster int
	cmd := &cobra.Command{
		Use: "overlay", Short: "paths to the pods of other nodes", Args: noArguments,
		Long: `overlay is about the routes and tunnels to other nodes' pods, which the kernel has also while no cluster
process runs. "ip route show proto 86" lists the routes.`,
		Example: "  coracle-kube overlay remove",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	remove := &cobra.Command{
		Use:     "remove",
		Short:   "remove the routes, tunnels and rules",
		Example: "  coracle-kube overlay remove\n  coracle-kube overlay remove --port 7443",
		Args:    noArguments,
		RunE:    func(*cobra.Command, []string) error { return paths.Remove(cluster) },
	}
	remove.Flags().IntVar(&cluster, "port", 6443, "the cluster's port, by which devices and rules are named")
	cmd.AddCommand(remove)
	return cmd
}
