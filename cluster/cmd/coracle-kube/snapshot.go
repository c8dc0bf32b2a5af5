package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/snapshot"
)

// progressEvery is how often a long copy says how far it is.
const progressEvery = 100 * time.Millisecond

// told is a line of what `coracle snapshot` reads from us: how far we are, or at last what was
// done.
type told struct {
	Done   int64            `json:"done,omitempty"`
	Total  int64            `json:"total,omitempty"`
	Result *snapshot.Result `json:"result,omitempty"`
}

// snapshotCommand is what `coracle snapshot` runs: all that is linked with etcd is in this program.
func snapshotCommand(log *slog.Logger) *cobra.Command {
	var root, state string
	cmd := &cobra.Command{
		Use: "snapshot", Short: "write the cluster's data into a file, check one, or put it back",
		Hidden: true, // coracle snapshot is for people
	}
	cmd.PersistentFlags().StringVar(&root, "root", "/var/lib/coracle/kube", "directory for what outlives a reboot")
	cmd.PersistentFlags().StringVar(&state, "state", "/run/coracle", "directory for what a reboot may lose")
	settings := map[string]string{}
	save := &cobra.Command{
		Use: "save FILE", Args: cobra.ExactArgs(1), Short: "write a snapshot",
		Example: "  coracle-kube snapshot save backup.snapshot --setting service-cidr=10.96.0.0/16,fd96:c0ac:1e::/112",
		RunE: func(cmd *cobra.Command, args []string) error {
			facts := snapshot.Facts{Coracle: version, Settings: settings}
			facts, err := snapshot.Save(cmd.Context(), root, filepath.Join(state, "kube"), args[0], facts, progressTo(cmd.OutOrStdout()),
				log)
			return done(cmd, snapshot.Result{Facts: facts}, err)
		},
	}
	save.Flags().StringToStringVar(&settings, "setting", nil, "`FLAG=VALUE` of the cluster that a restored one needs, too")
	check := &cobra.Command{
		Use: "check FILE", Args: cobra.ExactArgs(1), Short: "read a snapshot, and say what is wrong with it, if anything",
		Example: "  coracle-kube snapshot check backup.snapshot",
		RunE: func(cmd *cobra.Command, args []string) error {
			facts, err := snapshot.Check(args[0], progressTo(cmd.OutOrStdout()))
			return done(cmd, snapshot.Result{Facts: facts}, err)
		},
	}
	var port int
	restore := &cobra.Command{
		Use: "restore FILE", Args: cobra.ExactArgs(1), Short: "replace the cluster's data by those of a snapshot",
		Example: "  coracle-kube snapshot restore backup.snapshot",
		RunE: func(cmd *cobra.Command, args []string) error {
			result, err := snapshot.Restore(cmd.Context(), otherMembers(root, port), args[0], dataversion.Own(version),
				progressTo(cmd.OutOrStdout()), log)
			return done(cmd, result, err)
		},
	}
	askPort(restore, &port)
	cmd.AddCommand(save, check, restore)
	return cmd
}

// progressTo writes lines of progress.
func progressTo(w io.Writer) snapshot.Progress {
	var last time.Time
	return func(done, total int64) {
		if now := time.Now(); now.Sub(last) >= progressEvery {
			last = now
			_ = json.NewEncoder(w).Encode(told{Done: done, Total: total})
		}
	}
}

func done(cmd *cobra.Command, r snapshot.Result, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(told{Result: &r})
}
