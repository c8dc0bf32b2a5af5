package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// snapshotFacts are what the cluster process's program says of a snapshot.
type snapshotFacts struct {
	File       string            `json:"file"`
	Created    time.Time         `json:"created"`
	Coracle    string            `json:"coracle,omitempty"`
	Kubernetes string            `json:"kubernetes"`
	Etcd       string            `json:"etcd"`
	Settings   map[string]string `json:"settings,omitempty"`
	Size       int64             `json:"size"`
	// Kept is where a restore has left the data that it replaced.
	Kept string `json:"kept,omitempty"`
	// Up is the command that starts the cluster after a restore.
	Up string `json:"up,omitempty"`
}

func snapshotCommand(p *place) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "save the cluster's data in a file, and restore them",
		Long: `A snapshot is one file with everything that cannot be generated again: all objects of the cluster, the key of
its certificate authority and the key of its service accounts. It has all Secrets, so protect it. It does not have
images, volumes, logs, or the file of --encryption-provider-config.`,
		Example: `  coracle snapshot save /backup/monday.snapshot
  coracle snapshot check /backup/monday.snapshot
  coracle down && coracle snapshot restore /backup/monday.snapshot && coracle up`,
	}
	cmd.AddCommand(snapshotSaveCommand(p), snapshotCheckCommand(p), snapshotRestoreCommand(p))
	return cmd
}

func snapshotSaveCommand(p *place) *cobra.Command {
	return snapshotVerb(p, &cobra.Command{
		Use:   "save FILE",
		Short: "write a snapshot into a new file",
		Long: `Write a snapshot to a new file, which only its owner may read. The cluster may run meanwhile. The snapshot has
everything that was written before it started. The file must not exist.`,
		Example: `  coracle snapshot save /backup/$(date +%F).snapshot
  coracle snapshot save /backup/now.snapshot -o json`,
	}, saveSnapshot, func(w io.Writer, f snapshotFacts) {
		_, _ = fmt.Fprintf(w, "%s has the cluster of %s, %s\n", f.File, f.Created.Local().Format(time.DateTime), output.Size(f.Size))
	})
}

func snapshotCheckCommand(p *place) *cobra.Command {
	return snapshotVerb(p, &cobra.Command{
		Use:     "check FILE",
		Short:   "read a whole snapshot, and report errors in it",
		Example: "  coracle snapshot check /backup/monday.snapshot",
	}, func(ctx context.Context, p place, progress *bar.Progress, file string) (snapshotFacts, error) {
		return p.snapshotTool(ctx, progress, "check", file)
	}, func(w io.Writer, f snapshotFacts) {
		_, _ = fmt.Fprintf(w, "%s is whole: the cluster of %s, written by Coracle %s (Kubernetes %s, etcd %s), %s\n", f.File,
			f.Created.Local().Format(time.DateTime), f.Coracle, f.Kubernetes, f.Etcd, output.Size(f.Size))
	})
}

func snapshotRestoreCommand(p *place) *cobra.Command {
	return snapshotVerb(p, &cobra.Command{
		Use:   "restore FILE",
		Short: "replace the cluster's data with a snapshot; the cluster must not run",
		Long: `Replace the cluster's data with a snapshot, or create a cluster from it in a directory or on a machine without
one. The cluster must not run, also not on other control-plane nodes. The file is checked before anything is changed.
The old data are kept in a directory, which restore prints. The next up uses the node's name, the Services' network and
the domain of the snapshot. Tokens and client certificates that were issued before the snapshot are valid again.

If restore is interrupted, even by a crash of the machine, the data are either the old or the new ones: the next
start of the cluster completes it or undoes it.`,
		Example: `  coracle down
  coracle snapshot restore /backup/monday.snapshot
  coracle up
  coracle snapshot restore --root /srv/coracle --state /run/coracle-two /backup/monday.snapshot   # another cluster of it`,
	}, restoreSnapshot, func(w io.Writer, f snapshotFacts) {
		_, _ = fmt.Fprintf(w, "the cluster is that of %s\n", f.Created.Local().Format(time.DateTime))
		if f.Kept != "" {
			_, _ = fmt.Fprintf(w, "the replaced data are in %s: remove it when nothing needs them\n", f.Kept)
		}
		_, _ = fmt.Fprintf(w, "start it with: %s\n", f.Up)
	})
}

// snapshotVerb completes a command that has a file for its argument.
func snapshotVerb(p *place, cmd *cobra.Command,
	act func(ctx context.Context, p place, progress *bar.Progress, file string) (snapshotFacts, error),
	tell func(io.Writer, snapshotFacts),
) *cobra.Command {
	var format output.Format
	verb := cmd.Name()
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if os.Geteuid() != 0 {
			return fmt.Errorf("snapshot %s: the cluster's data belong to root: use sudo", verb)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		file, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		progress := bar.New(cmd.ErrOrStderr(), verb)
		facts, err := act(ctx, *p, progress, file)
		progress.Abort()
		if err != nil {
			return fmt.Errorf("snapshot %s: %w", verb, err)
		}
		facts.File = file
		return format.Print(cmd.OutOrStdout(), facts, func(w io.Writer) { tell(w, facts) })
	}
	format.Define(cmd)
	return cmd
}

func saveSnapshot(ctx context.Context, p place, progress *bar.Progress, file string) (snapshotFacts, error) {
	o := remembered(p)
	if err := o.builtInEtcd(); err != nil {
		return snapshotFacts{}, err
	}
	var settings []string
	for flag, value := range o.forSnapshot() {
		settings = append(settings, "--setting", flag+"="+value)
	}
	return p.snapshotTool(ctx, progress, "save", file, settings...)
}

// builtInEtcd refuses what cannot be done with an etcd of others.
func (o upOptions) builtInEtcd() error {
	if len(o.Etcd) == 0 {
		return nil
	}
	return fmt.Errorf("this cluster keeps its data in the etcd at %s: use 'etcdctl snapshot' there", o.Etcd[0])
}

func restoreSnapshot(ctx context.Context, p place, progress *bar.Progress, file string) (snapshotFacts, error) {
	release, err := p.makeExclusive(ctx)
	if err != nil {
		return snapshotFacts{}, err
	}
	defer release()
	o := remembered(p)
	if err := o.builtInEtcd(); err != nil {
		return snapshotFacts{}, err
	}
	pid, err := holder(p.supervisor())
	if err != nil {
		return snapshotFacts{}, err
	}
	if pid != 0 {
		return snapshotFacts{}, fmt.Errorf("nothing was changed: %w", p.runs(pid))
	}
	var flags []string
	if o.Port != 0 { // that of the API servers on other control-plane nodes, too
		flags = []string{"--port", strconv.Itoa(o.Port)}
	}
	facts, err := p.snapshotTool(ctx, progress, "restore", file, flags...)
	if err != nil {
		return snapshotFacts{}, err
	}
	if err := remembered(p).remember(p); err != nil {
		return snapshotFacts{}, fmt.Errorf("the snapshot is restored, but its settings were not remembered: %w", err)
	}
	facts.Up = "coracle up" + p.flags()
	return facts, nil
}

// runs is the error for a cluster with our --state whose supervisor is the process pid. It may be
// one with another --root.
func (p place) runs(pid int) error {
	running := p
	if root := supervisedRoot(pid); root != "" {
		running.root = root
	}
	if running.root != p.root {
		return fmt.Errorf("the cluster in %s runs with --state %s: give the one in %s another --state, or end that one with 'coracle down%s', "+
			"which ends its pods",
			running.root, p.state, p.root, running.flags())
	}
	return fmt.Errorf("the cluster runs: 'coracle down%s' first, which ends its pods", running.flags())
}

// supervisedRoot is the --root of the cluster that a supervisor runs, "" if it cannot be told.
func supervisedRoot(pid int) string {
	args := arguments(pid)
	if i := slices.Index(args, "--root"); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

var errNoResult = errors.New("coracle-kube ended without a result")
