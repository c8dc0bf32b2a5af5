// Package workload has the commands that look at and into pods and containers: pods, ps, logs,
// exec, stats, top, events and trace. They speak CRI, so what they show is what the kubelet is
// told.
//
// A machine may have several nodes, each with a coracled of its own. Lists, usage and events are
// about all of them. A command about one pod or container finds the node that has it: for the first
// one it asks that node's coracled, for a further one this program is executed again there.
package workload

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
)

// Machine is the machine that the commands are about. They ask it after their flags are parsed,
// because flags may say where it keeps what it has.
type Machine interface {
	// Socket is the path of the first node's coracled.
	Socket() string
	// Nodes are the nodes of this machine, the first one first; none if it has only one.
	Nodes() []Node
	// Enter executes this program again, with the same arguments, on one of Nodes other than the
	// first. It returns only if that fails.
	Enter(node string) error
	// Settled has a completion run when the flags of its command count. The completions of arguments
	// need it, too: the machine puts it around those of all its commands.
	Settled(complete cobra.CompletionFunc) cobra.CompletionFunc
}

// Node is one of several nodes of a machine.
type Node struct {
	Name string
	// Socket is the path of its coracled.
	Socket string
}

// workload is what the commands share: where the daemon is.
type workload struct {
	daemon  *daemon.Daemon
	machine Machine
	// patience is how long one of several nodes may take to list its pods and containers.
	patience time.Duration
}

// listLimit is the patience of commands.
const listLimit = 10 * time.Second

// Commands returns the commands.
func Commands(m Machine) []*cobra.Command {
	w := &workload{daemon: daemon.New(m.Socket), machine: m, patience: listLimit}
	all := []*cobra.Command{
		w.podsCommand(), w.psCommand(), w.logsCommand(), w.execCommand(), w.statsCommand(), w.eventsCommand(), w.topCommand(), w.traceCommand(),
	}
	for _, cmd := range all {
		w.daemon.Define(cmd.Flags())
	}
	return all
}

// FindContainer returns the id of a container for a command that is not one of Commands. If the
// container is on a further node, the command is executed again there.
func FindContainer(m Machine, cmd *cobra.Command, d *daemon.Daemon, name string) (id string, err error) {
	w := &workload{daemon: d, machine: m, patience: listLimit}
	err = w.lookForContainer(cmd, name, func(_ context.Context, _ runtimeapi.RuntimeServiceClient, _ inventory,
		ctr *runtimeapi.Container,
	) error {
		id = ctr.GetId()
		return nil
	})
	return id, err
}

// call does work with a client of the daemon.
func (w *workload) call(cmd *cobra.Command, work func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error) error {
	return w.daemon.Call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		return work(ctx, runtimeapi.NewRuntimeServiceClient(conn))
	})
}

// look calls work with all pods and containers.
func (w *workload) look(cmd *cobra.Command, work func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory) error) error {
	return w.call(cmd, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		all, err := takeInventory(ctx, c)
		if err != nil {
			return err
		}
		return work(ctx, c, all)
	})
}

// complete offers what offers finds in the inventory, for the first argument or, with many, for
// all.
func (w *workload) complete(many bool, offers func(inventory) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), daemon.CompletionLimit)
		defer cancel()
		cmd.SetContext(ctx)
		all, _, _ := w.inventoryOfAll(cmd)
		return offers(all), cobra.ShellCompDirectiveNoFileComp
	}
}
