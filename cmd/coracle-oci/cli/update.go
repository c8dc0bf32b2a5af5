package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"github.com/docker/go-units"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/runtime"
)

// updateFlags are limits as text: an empty one stays as it is.
type updateFlags struct {
	file                                     string
	l3Cache, memoryBandwidth                 string
	blkioWeight                              uint16
	cpus, mems                               string
	idle, quota, realtimeRuntime             string
	period, realtimePeriod, burst, shares    string
	memory, swap, reservation, kernel, kmTCP string
	pids                                     int64
}

func (a *app) updateCommand() *cobra.Command {
	var u updateFlags
	cmd := &cobra.Command{
		Use:   "update [flags] ID",
		Short: "Change a container's resource limits",
		Long: `update changes resource limits: those of the flags, or those of a JSON file with the
runtime spec's linux.resources. With a file, other flags are ignored.`,
		Example: `  coracle-oci update --memory 256m --cpu-quota 50000 mine
  echo '{"memory": {"limit": 268435456}}' |
    coracle-oci update --resources - mine`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.load(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var r *specs.LinuxResources
			if u.file != "" {
				r, err = readResources(u.file, a.stdin)
			} else {
				r, err = u.resources(cmd.Flags().Changed)
			}
			if err != nil {
				return err
			}
			if u.kernel+u.kmTCP != "" {
				a.log.slog.Warn("kernel memory limits are ignored: the kernel no longer has them")
			}
			completeResources(r)
			if err := c.Update(cmd.Context(), r); err != nil {
				return err
			}
			return u.updateRdt(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&u.file, "resources", "r", "", "JSON file with the runtime spec's linux.resources, - for standard input")
	f.Uint16Var(&u.blkioWeight, "blkio-weight", 0, "share of block I/O, 10 to 1000")
	f.StringVar(&u.period, "cpu-period", "", "microseconds that --cpu-quota counts for, 0 for the kernel's default")
	f.StringVar(&u.quota, "cpu-quota", "", "microseconds of CPU time in each period, -1 for no limit")
	f.StringVar(&u.burst, "cpu-burst", "", "microseconds of unused quota that may be saved up")
	f.StringVar(&u.shares, "cpu-share", "", "share of CPU time, compared with other containers")
	f.StringVar(&u.realtimePeriod, "cpu-rt-period", "", "microseconds that --cpu-rt-runtime counts for")
	f.StringVar(&u.realtimeRuntime, "cpu-rt-runtime", "", "microseconds of realtime CPU time in each period")
	f.StringVar(&u.idle, "cpu-idle", "", "1: run only when nothing else wants to (SCHED_IDLE), 0: as others")
	f.StringVar(&u.cpus, "cpuset-cpus", "", "CPUs to use, as in 0-2,7")
	f.StringVar(&u.mems, "cpuset-mems", "", "memory nodes to use")
	f.StringVar(&u.memory, "memory", "", "memory limit, as in 512m, -1 for none")
	f.StringVar(&u.reservation, "memory-reservation", "", "memory to keep when others need some")
	f.StringVar(&u.swap, "memory-swap", "", "limit of memory and swap together, -1 for none")
	f.StringVar(&u.kernel, "kernel-memory", "", "ignored")
	f.StringVar(&u.kmTCP, "kernel-memory-tcp", "", "ignored")
	_ = f.MarkHidden("kernel-memory")
	_ = f.MarkHidden("kernel-memory-tcp")
	f.Int64Var(&u.pids, "pids-limit", 0, "most processes, -1 for no limit")
	f.StringVar(&u.l3Cache, "l3-cache-schema", "", "Intel RDT's L3 cache schema")
	f.StringVar(&u.memoryBandwidth, "mem-bw-schema", "", "Intel RDT's memory bandwidth schema")
	return cmd
}

func readResources(file string, stdin io.Reader) (*specs.LinuxResources, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		stdin = f
	}
	var r specs.LinuxResources
	if err := json.NewDecoder(io.LimitReader(stdin, runtime.MaxSpecSize)).Decode(&r); err != nil {
		return nil, fmt.Errorf("read --resources %s: %w", file, err)
	}
	return &r, nil
}

// resources reads the flags; set says whether one is given.
func (u *updateFlags) resources(set func(string) bool) (*specs.LinuxResources, error) {
	r := &specs.LinuxResources{
		CPU: &specs.LinuxCPU{Cpus: u.cpus, Mems: u.mems}, Memory: &specs.LinuxMemory{},
	}
	if u.blkioWeight != 0 {
		r.BlockIO = &specs.LinuxBlockIO{Weight: &u.blkioWeight}
	}
	if set("pids-limit") {
		r.Pids = &specs.LinuxPids{Limit: &u.pids}
	}
	var errs []error
	unsigned := func(flag, text string, to **uint64) {
		if text == "" {
			return
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is not a number from 0 on", flag, text))
		}
		*to = &n
	}
	signed := func(flag, text string, to **int64) {
		if text == "" {
			return
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s %q is not a number", flag, text))
		}
		*to = &n
	}
	size := func(flag, text string, to **int64) {
		if text == "" {
			return
		}
		n := int64(-1)
		if text != "-1" {
			var err error
			if n, err = units.RAMInBytes(text); err != nil || n == math.MaxInt64 {
				errs = append(errs, fmt.Errorf("--%s %q is not a size, use bytes, a number with k, m or g, or -1", flag, text))
			}
		}
		*to = &n
	}
	unsigned("cpu-burst", u.burst, &r.CPU.Burst)
	unsigned("cpu-period", u.period, &r.CPU.Period)
	unsigned("cpu-rt-period", u.realtimePeriod, &r.CPU.RealtimePeriod)
	unsigned("cpu-share", u.shares, &r.CPU.Shares)
	signed("cpu-idle", u.idle, &r.CPU.Idle)
	signed("cpu-quota", u.quota, &r.CPU.Quota)
	signed("cpu-rt-runtime", u.realtimeRuntime, &r.CPU.RealtimeRuntime)
	size("memory", u.memory, &r.Memory.Limit)
	size("memory-swap", u.swap, &r.Memory.Swap)
	size("memory-reservation", u.reservation, &r.Memory.Reservation)
	return r, errors.Join(errs...)
}

// completeResources sets what the kernel wants next to what is asked for, as runc does.
func completeResources(r *specs.LinuxResources) {
	if m := r.Memory; m != nil && m.Limit != nil && *m.Limit == -1 && m.Swap == nil {
		// There is no limit of swap without one of memory.
		m.Swap = new(int64)
	}
	if c := r.CPU; c != nil && c.Idle != nil && c.Shares == nil {
		// An idle cgroup takes no weight.
		c.Shares = new(uint64)
	}
}

func (u *updateFlags) updateRdt(ctx context.Context, c runtime.Container) error {
	if u.file != "" || u.l3Cache+u.memoryBandwidth == "" {
		return nil
	}
	r, ok := c.(runtime.RdtUpdater)
	if !ok {
		return fmt.Errorf("--l3-cache-schema, --mem-bw-schema: %w by this engine", runtime.ErrUnsupported)
	}
	return r.UpdateRdt(ctx, u.l3Cache, u.memoryBandwidth)
}
