package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
)

func (a *app) eventsCommand() *cobra.Command {
	var (
		interval time.Duration
		once     bool
	)
	cmd := &cobra.Command{
		Use:   "events [flags] ID",
		Short: "Print out-of-memory kills and, every so often, statistics as JSON lines",
		Example: `  coracle-oci events --stats mine
  coracle-oci events --interval 1s mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval <= 0 {
				return fmt.Errorf("--interval %s: the duration must be greater than 0", interval)
			}
			if a.extra == nil {
				return errCompanion
			}
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			state, err := c.State(cmd.Context())
			if err != nil {
				return err
			}
			if state.Status == specs.StateStopped {
				return fmt.Errorf("container with id %s is not running: %w", c.ID(), runtime.ErrNotRunning)
			}
			h, ok := c.(runtime.CgroupHolder)
			if !ok {
				return fmt.Errorf("events: %w by this engine", runtime.ErrUnsupported)
			}
			r := &reporter{id: c.ID(), paths: h.CgroupPaths(), to: json.NewEncoder(a.stdout), shape: a.extra.Stats}
			if once {
				return r.stats()
			}
			return r.run(cmd.Context(), interval, a.log)
		},
	}
	cmd.Flags().DurationVar(&interval, "interval", 5*time.Second, "time between two statistics")
	cmd.Flags().BoolVar(&once, "stats", false, "print statistics once and end")
	return cmd
}

// reporter prints events of one container.
type reporter struct {
	id    string
	paths map[string]string
	to    *json.Encoder
	shape func(*cgroups.Stats) any
}

// event is a line of output, as runc has it.
type event struct {
	Type string `json:"type"`
	ID   string `json:"id"`
	Data any    `json:"data,omitempty"`
}

// run ends when the container's cgroup is gone.
func (r *reporter) run(ctx context.Context, interval time.Duration, log *logTarget) error {
	oom, err := watchOOM(ctx, r.paths)
	if err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case _, ok := <-oom:
			if !ok {
				return nil
			}
			if err := r.to.Encode(event{Type: "oom", ID: r.id}); err != nil {
				return err
			}
		case <-tick.C:
			if err := r.stats(); errors.Is(err, io.ErrClosedPipe) {
				return err
			} else if err != nil {
				log.slog.Error(err.Error())
			}
		}
	}
}

func (r *reporter) stats() error {
	m, err := manager.NewWithPaths(&cgroups.Cgroup{Resources: &cgroups.Resources{}}, r.paths)
	if err != nil {
		return err
	}
	s, err := m.GetStats()
	if err != nil {
		return fmt.Errorf("read statistics of container %s: %w", r.id, err)
	}
	return r.to.Encode(event{Type: "stats", ID: r.id, Data: r.shape(s)})
}
