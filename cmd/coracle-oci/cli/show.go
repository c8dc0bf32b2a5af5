package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// shown is a container as state and list print it: the OCI state and what runc adds.
type shown struct {
	Version     string               `json:"ociVersion"`
	ID          string               `json:"id"`
	Pid         int                  `json:"pid"`
	Status      specs.ContainerState `json:"status"`
	Bundle      string               `json:"bundle"`
	Rootfs      string               `json:"rootfs,omitempty"`
	Created     time.Time            `json:"created"`
	Annotations map[string]string    `json:"annotations,omitempty"`
	Owner       string               `json:"owner"`
}

func show(ctx context.Context, c runtime.Observable) (shown, error) {
	s, err := c.State(ctx)
	if err != nil {
		return shown{}, err
	}
	out := shown{
		Version: s.Version, ID: s.ID, Pid: s.Pid, Status: s.Status, Bundle: s.Bundle,
		Created: s.Created, Annotations: s.Annotations,
	}
	// The bundle may be gone by now; the state is good without it.
	if spec, err := runtime.LoadSpec(s.Bundle); err == nil && spec.Root != nil {
		out.Rootfs = spec.Root.Path
		if !filepath.IsAbs(out.Rootfs) {
			out.Rootfs = filepath.Join(s.Bundle, out.Rootfs)
		}
	}
	return out, nil
}

// owner is the name of the user that a container's directory belongs to, or #UID.
func owner(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return ""
	}
	uid := strconv.FormatUint(uint64(st.Uid), 10)
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return "#" + uid
}

func (a *app) stateCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "state ID",
		Short:   "Print a container's OCI state as JSON",
		Example: "  coracle-oci state mine",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := show(cmd.Context(), c)
			if err != nil {
				return err
			}
			return printJSON(a.stdout, s)
		},
	}
}

func (a *app) listCommand() *cobra.Command {
	var (
		format string
		quiet  bool
	)
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the containers under --root",
		Example: "  coracle-oci list --format json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			if cmd.Flags().Changed("root") { // a wrong one is not an empty one
				if _, err := os.Stat(a.root); err != nil {
					return fmt.Errorf("--root: %w", err)
				}
			}
			e, err := a.engine()
			if err != nil {
				return err
			}
			ids, err := e.List(cmd.Context())
			if err != nil {
				return err
			}
			all := []shown{}
			for _, id := range ids {
				c, err := e.Load(cmd.Context(), id)
				if errors.Is(err, runtime.ErrNotFound) {
					continue // deleted meanwhile
				}
				if err != nil {
					return err
				}
				s, err := show(cmd.Context(), c)
				if err != nil {
					return err
				}
				s.Owner = owner(filepath.Join(a.root, id))
				all = append(all, s)
			}
			return printList(a.stdout, all, format, quiet)
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "table", "table or json")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only ids")
	return cmd
}

func printList(w io.Writer, all []shown, format string, quiet bool) error {
	if quiet {
		for _, s := range all {
			fmt.Fprintln(w, s.ID)
		}
		return nil
	}
	if format == "json" {
		return json.NewEncoder(w).Encode(all)
	}
	tw := tabwriter.NewWriter(w, 12, 1, 3, ' ', 0)
	fmt.Fprintln(tw, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\tOWNER")
	for _, s := range all {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\n", s.ID, s.Pid, s.Status, s.Bundle, s.Created.Format(time.RFC3339Nano), s.Owner)
	}
	return tw.Flush()
}

func (a *app) psCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "ps [flags] ID [PS-OPTION...]",
		Short: "Show the processes in a container",
		Example: `  coracle-oci ps mine
  coracle-oci ps --format json mine`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format); err != nil {
				return err
			}
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			pids, err := c.Pids(cmd.Context())
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(a.stdout).Encode(append([]int{}, pids...))
			}
			options := args[1:]
			if len(options) == 0 {
				options = []string{"-ef"}
			}
			out, err := exec.CommandContext(cmd.Context(), "ps", options...).Output()
			if err != nil {
				return fmt.Errorf("run ps %s: %w", strings.Join(options, " "), err)
			}
			return filterPs(a.stdout, out, pids)
		},
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().StringVarP(&format, "format", "f", "table", "table (through ps) or json (pids only)")
	return cmd
}

// filterPs keeps ps's heading and the lines of pids.
func filterPs(w io.Writer, out []byte, pids []int) error {
	column := -1
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if column < 0 {
			if column = slices.Index(fields, "PID"); column < 0 {
				return errors.New("ps printed no column PID, choose options that do")
			}
			fmt.Fprintln(w, s.Text())
			continue
		}
		if column >= len(fields) {
			continue
		}
		if pid, err := strconv.Atoi(fields[column]); err == nil && slices.Contains(pids, pid) {
			fmt.Fprintln(w, s.Text())
		}
	}
	return nil
}

func checkFormat(f string) error {
	if f != "table" && f != "json" {
		return fmt.Errorf("--format %q is unknown, use table or json", f)
	}
	return nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
