package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/image"
	"github.com/coracle-project/coracle/cmd/coracle/workload"
	"github.com/coracle-project/coracle/internal/manpage"
	"github.com/coracle-project/coracle/internal/version"
)

// defaultRoot is where the cluster of this machine has its data. Others, for trying things, have
// another --root, and do not follow what is in /etc.
const defaultRoot = "/var/lib/coracle"

// defaultState is where it has what a reboot may lose.
const defaultState = "/run/coracle"

// place is where one cluster lives; all that is found by it.
type place struct {
	root, state string
	// node is what --node says, and the name of a further node of up --nodes when this is its place:
	// cluster has the flags of its cluster's place then.
	node, cluster string
}

// Socket is where coracled is reached. It has a pointer for its receiver: commands hand it on as a
// value before the flags are parsed.
func (p *place) Socket() string    { return filepath.Join(p.state, "coracle.sock") }
func (p place) kubeRoot() string   { return filepath.Join(p.root, "kube") }
func (p place) kubeState() string  { return filepath.Join(p.state, "kube") }
func (p place) kubeconfig() string { return filepath.Join(p.root, "kubeconfig") }
func (p place) logs() string       { return filepath.Join(p.root, "logs") }

func (p place) kubelet() string     { return filepath.Join(p.kubeRoot(), "kubelet") }
func (p place) kubeLog() string     { return filepath.Join(p.logs(), "kube.log") }
func (p place) coracledLog() string { return filepath.Join(p.logs(), "coracled.log") }

// imagePeers is where coracled reads from which nodes it fetches layers (cluster/imagepeers).
func (p place) imagePeers() string { return filepath.Join(p.state, "image-peers", "nodes.json") }

// supervisor is the file that the supervisor of the cluster process holds a lock on.
func (p place) supervisor() string { return filepath.Join(p.state, "kube.lock") }

// settings is the file in which up leaves what it was given, for down. It outlives a reboot, as
// does what down --purge removes.
func (p place) settings() string { return filepath.Join(p.root, "up.json") }

// runtime is the file that coracled holds a lock on.
func (p place) runtime() string { return filepath.Join(p.state, "lock") }

func command() *cobra.Command {
	var p place
	root := &cobra.Command{
		Use:   "coracle",
		Short: "run Kubernetes on this machine, and manage its pods, containers and images",
		Long: `coracle runs a Kubernetes over coracled: API server, scheduler, controllers and
kubelet in one process. Further nodes join from other machines, or run on this one.

It also shows what runs on a node and what is wrong with it. pods, ps, logs, exec, stats,
events and image need only coracled.`,
		Example: `  coracle ps
  coracle logs -f web/nginx
  coracle up
  coracle up --nodes 3
  kubectl --kubeconfig $(coracle kubeconfig) get nodes
  coracle status
  coracle why pod/cart svc/db
  coracle down --purge
  coracle join https://10.0.0.1:6443 --token TOKEN --ca-hash HASH`,
		Version:           version.String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return p.settle(cmd) },
	}
	f := root.PersistentFlags()
	f.StringVar(&p.root, "root", defaultRoot, "directory for data that survives a reboot")
	f.StringVar(&p.state, "state", defaultState, "directory for data that a reboot may lose; without the flag, that of the last up with this --root")
	f.StringVar(&p.node, "node", "", "`NAME` of the node of 'coracle up --nodes' that the command is for (default: the first)")
	root.AddCommand(upCommand(&p), downCommand(&p), statusCommand(&p), imageCommand(&p), kubeconfigCommand(&p),
		superviseCommand(&p), snapshotCommand(&p), tokenCommand(&p), certificateCommand(&p), joinCommand(&p), leaveCommand(&p),
		upgradeCommand(&p), nodeCommand(&p))
	root.AddCommand(manpage.Command(manpage.Page{
		ExitStatus: "0 if all went well, 1 if not. exec ends with the exit code of what it ran, doctor with 1 if it found an error, and up with 78 " +
			"if the machine was removed from the cluster, so that it is not tried again.",
		Files: `/run/coracle/coracle.sock: where coracled is reached, unless --address or $CORACLE_ADDRESS says otherwise.
/var/lib/coracle/kubeconfig: the administrator's, after coracle up.`,
		SeeAlso: "coracled(8), coracle-oci(8)",
	}))
	root.AddCommand(append(workload.Commands(&p), shimCommand(&p), doctorCommand(&p), whyCommand(&p))...)
	p.completeHere(root)
	return root
}

// settle makes p what the flags of a command say, or the last up with this --root.
func (p *place) settle(cmd *cobra.Command) error {
	for _, dir := range []*string{&p.root, &p.state} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	if !cmd.Flags().Changed("state") {
		p.state = cmp.Or(remembered(*p).State, defaultState)
	}
	if p.node != "" {
		return p.enter()
	}
	return nil
}

// completeHere has the arguments of a command, and of those below it, completed by Settled.
func (p *place) completeHere(cmd *cobra.Command) {
	if cmd.ValidArgsFunction != nil {
		cmd.ValidArgsFunction = p.Settled(cmd.ValidArgsFunction)
	}
	for _, sub := range cmd.Commands() {
		p.completeHere(sub)
	}
}

func imageCommand(p *place) *cobra.Command {
	return image.Command(p.Socket, sibling, func(cmd *cobra.Command, d *daemon.Daemon, container string) (id string, err error) {
		return workload.FindContainer(p, cmd, d, container)
	})
}

func kubeconfigCommand(p *place) *cobra.Command {
	return &cobra.Command{
		Use:     "kubeconfig",
		Short:   "print the path of the administrator's kubeconfig",
		Example: "  export KUBECONFIG=$(coracle kubeconfig)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch _, err := os.Stat(p.kubeconfig()); {
			case errors.Is(err, fs.ErrPermission):
				return fmt.Errorf("the kubeconfig belongs to root: %w; use sudo", err)
			case err != nil:
				return fmt.Errorf("there is no kubeconfig yet: %w; run 'coracle up%s' first", err, p.flags())
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), p.kubeconfig())
			return err
		},
	}
}

// flags is what a user has to type after a command to mean this place.
func (p place) flags() string {
	if p.cluster != "" || p.node != "" {
		return " --node " + p.node + p.cluster
	}
	var b strings.Builder
	if p.root != defaultRoot {
		b.WriteString(" --root " + p.root)
	}
	if p.state != defaultState {
		b.WriteString(" --state " + p.state)
	}
	return b.String()
}

// sibling finds a program of ours: next to this one, or else on PATH.
func sibling(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return lookPath(name)
}
