package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
)

// workload is what the commands for pods and containers share: where the daemon is. They
// speak CRI, so what they show is what the kubelet is told.
type workload struct{ daemon *daemon.Daemon }

// workloadCommands are the commands that look at and into pods and containers.
func workloadCommands(p *place) []*cobra.Command {
	w := &workload{daemon: daemon.New(p.socket)}
	all := []*cobra.Command{
		w.podsCommand(), w.psCommand(), w.logsCommand(), w.execCommand(), w.statsCommand(), w.eventsCommand(), w.topCommand(), w.traceCommand(),
	}
	for _, cmd := range all {
		w.daemon.Define(cmd.Flags())
	}
	return all
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
		var names []string
		_ = w.look(cmd, func(_ context.Context, _ runtimeapi.RuntimeServiceClient, all inventory) error {
			names = offers(all)
			return nil
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
