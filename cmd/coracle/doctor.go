package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/doctor"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	"github.com/coracle-project/coracle/internal/version"
)

func doctorCommand(p *place) *cobra.Command {
	var (
		format     output.Format
		file       string
		registries []string
	)
	d := daemon.New(func() string { return "" })
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "find problems of this node, and say how to fix them",
		Long: `Check the kernel, cgroups, coracled's configuration, the programs that it needs, disks,
CNI, firewalls and whatever else handles pods' packets, the cluster process and coracled
if they run, and the registries that are configured or that images came from. doctor
changes nothing, and exits with 1 if there is an error.`,
		Example: `  coracle doctor
  coracle doctor --registry registry.example:5000
  coracle doctor -o json | jq '.[] | select(.level != "ok")'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			places := doctor.Places{ConfigFile: file, Socket: d.Socket(), Registries: registries, Version: version.Number()}
			if cmd.Flags().Changed("root") {
				places.Root = p.root
			}
			o := remembered(*p)
			if cmd.Flags().Changed("state") || o.State != "" {
				places.State = p.state
			}
			if places.Server = o.Server; o.Server == "" {
				places.Peers = peers(cmd.Context(), *p, o)
			}
			places.Ports = p.ports(o)
			all := doctor.Examine(doctor.Gather(cmd.Context(), places))
			out := cmd.OutOrStdout()
			if err := format.Print(out, all, func(w io.Writer) { findingRows(w, all) }); err != nil {
				return err
			}
			if doctor.Sick(all) {
				return errors.New("this node has faults that have to be fixed")
			}
			return nil
		},
	}
	format.Define(cmd)
	d.Define(cmd.Flags())
	cmd.Flags().StringVar(&file, "config", "/etc/coracle/config.toml", "coracled's configuration file")
	cmd.Flags().StringArrayVar(&registries, "registry", nil, "a registry to look at besides, as `HOST[:PORT]`; may be given again")
	return cmd
}

// findingRows puts the remedy on a line of its own, below the finding.
func findingRows(w io.Writer, all []doctor.Finding) {
	for _, f := range all {
		output.Row(w, f.Level, f.Check, f.Message)
		if f.Remedy != "" {
			output.Row(w, "", "", fmt.Sprintf("→ %s", f.Remedy))
		}
	}
}

// peers are what this machine calls on the other nodes of its cluster that say that they are Ready:
// kubelets, the API servers and members of etcd of other control-plane nodes, and where layers of
// images are asked for. Without an answer of the API server there are none: status tells that.
func peers(ctx context.Context, p place, o upOptions) (all []doctor.Peer) {
	client, err := openAPI(p.kubeconfig())
	if err != nil {
		return nil
	}
	defer client.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, longestTry)
	defer cancel()
	nodes, err := client.nodes(ctx)
	if err != nil {
		return nil
	}
	var servers []netip.AddrPort
	var members []etcdMember
	if p.severalControlPlanes() { // without an answer the kubelets are left
		servers, _ = client.servers(ctx)
		members, _ = client.members(ctx)
	}
	var layers []doctor.Peer
	for _, n := range nodes {
		kubelet := n.kubelet()
		host, _, _ := net.SplitHostPort(kubelet)
		addr, err := netip.ParseAddr(host)
		// The kubelet writes the address, which may be a name, or any text.
		if n.ready(time.Time{}).Status != "True" || n.Metadata.Name == o.Node || err != nil || addr.Zone() != "" {
			continue
		}
		all = append(all, doctor.Peer{
			Name: n.Metadata.Name, Part: "kubelet", At: kubelet, Without: "logs, exec and metrics of its pods do not work",
		})
		layers = append(layers, doctor.LayersOf(n.Metadata.Name, addr))
		for _, s := range servers {
			if s.Addr() == addr {
				all = append(all, doctor.Peer{
					Name: n.Metadata.Name, Part: "API server", At: s.String(), Without: "pods and nodes here have one API server less",
				})
			}
		}
		for _, m := range members {
			if at, err := url.Parse(m.URL); err == nil && m.Name == n.Metadata.Name {
				all = append(all, doctor.Peer{
					Name: n.Metadata.Name, Part: "member of etcd", At: at.Host, Without: "it does not count for the quorum",
				})
			}
		}
	}
	return append(all, layers...) // last: only so many are called, and the cluster works without them
}

func (o *upOptions) etcdPeerPort() int { return cmp.Or(o.EtcdPeerPort, defaultPeerPort) }

// ports are those of this machine that others of its cluster need. Those of tunnels are doctor's to
// find.
func (p place) ports(o upOptions) []doctor.Port {
	all := []doctor.Port{{Number: uint16(cmp.Or(o.KubeletPort, defaultKubeletPort)), For: "calls of the kubelet (logs, exec, metrics)"}}
	if o.Server == "" {
		all = append(all, doctor.Port{Number: uint16(o.Port), For: "calls of the API server"})
	}
	if o.Server == "" && p.severalControlPlanes() {
		all = append(all, doctor.Port{Number: uint16(o.etcdPeerPort()), For: "packets of etcd's other members"})
	}
	return all
}
