package main

import (
	"cmp"
	"context"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	nodev1 "github.com/coracle-project/coracle/shim/nodeapi/v1"
)

// shims are the commands about shims.
type shims struct{ daemon *daemon.Daemon }

// shimLine is a shim in the output.
type shimLine struct {
	Name     string `json:"name"`
	PID      uint32 `json:"pid"`
	Version  string `json:"version,omitempty"`
	Starts   uint32 `json:"starts"`
	LastExit string `json:"lastExit,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

func shimCommand(p *place) *cobra.Command {
	s := &shims{daemon: daemon.New(p.Socket)}
	cmd := &cobra.Command{
		Use:   "shim",
		Short: "list and restart shims, the parents of containers",
		Long: `A shim is the parent of containers: it holds their input and output, writes their logs and
records their exit status. There is one for all pods, called node, or one for each pod, named by the
pod's id (shim.scope). Containers keep running without it.`,
		Example: `  coracle shim list
  coracle shim restart`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	s.daemon.Define(cmd.PersistentFlags())
	cmd.AddCommand(s.listCommand(), s.restartCommand())
	return cmd
}

func (s *shims) listCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "list the shims: version, starts, and problems",
		Example: `  coracle shim list
  coracle shim list -o json`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.print(cmd, format, func(ctx context.Context, c nodev1.NodeClient) ([]*nodev1.Shim, error) {
				r, err := c.ListShims(ctx, &nodev1.ListShimsRequest{})
				return r.GetShims(), err
			})
		},
	}
	format.Define(cmd)
	return cmd
}

func (s *shims) restartCommand() *cobra.Command {
	var format output.Format
	cmd := &cobra.Command{
		Use:   "restart [NAME...]",
		Short: "restart shims with the installed program",
		Long: `Restart shims, all if none is named, with the installed program: after an upgrade,
or when one misbehaves. Calls in progress finish first. Containers keep running, and no output or exit
status is lost.`,
		Example: `  coracle shim restart
  coracle shim restart node`,
		ValidArgsFunction: s.completeNames,
		RunE: func(cmd *cobra.Command, names []string) error {
			return s.print(cmd, format, func(ctx context.Context, c nodev1.NodeClient) ([]*nodev1.Shim, error) {
				r, err := c.RestartShims(ctx, &nodev1.RestartShimsRequest{Names: names})
				return r.GetShims(), err
			})
		},
	}
	format.Define(cmd)
	return cmd
}

// print prints the shims that a call returns.
func (s *shims) print(cmd *cobra.Command, format output.Format,
	call func(context.Context, nodev1.NodeClient) ([]*nodev1.Shim, error),
) error {
	return s.daemon.Call(cmd.Context(), func(ctx context.Context, conn *grpc.ClientConn) error {
		found, err := call(ctx, nodev1.NewNodeClient(conn))
		if err != nil {
			return err
		}
		lines := make([]shimLine, len(found))
		for i, f := range found {
			lines[i] = shimLine{f.GetName(), f.GetPid(), f.GetVersion(), f.GetStarts(), f.GetLastExit(), f.GetProblem()}
		}
		return format.Print(cmd.OutOrStdout(), lines, func(out io.Writer) {
			output.Row(out, "NAME", "PID", "VERSION", "STARTS", "LAST EXIT", "PROBLEM")
			for _, l := range lines {
				output.Row(out, l.Name, l.PID, l.Version, l.Starts, cmp.Or(l.LastExit, "-"), cmp.Or(l.Problem, "-"))
			}
		})
	})
}

func (s *shims) completeNames(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), daemon.CompletionLimit)
	defer cancel()
	var names []string
	_ = s.daemon.Call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		r, err := nodev1.NewNodeClient(conn).ListShims(ctx, &nodev1.ListShimsRequest{})
		for _, f := range r.GetShims() {
			names = append(names, f.GetName())
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
