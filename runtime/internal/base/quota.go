package base

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
)

// completeQuota adds to an update the one of quota and period that it does not name: what is in
// force. The unified hierarchy has both in one file, and the library would write the default for
// what is missing.
func (r *Record) completeQuota(want *cgroups.Resources) error {
	if (want.CpuQuota == 0) == (want.CpuPeriod == 0) {
		return nil
	}
	quota, period, err := r.quota()
	if errors.Is(err, fs.ErrNotExist) { // no such controller, which the library will say
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the quota in force: %w", err)
	}
	if want.CpuQuota == 0 {
		want.CpuQuota = quota
	} else {
		want.CpuPeriod = period
	}
	return nil
}

// quota is what limits the container's use of processors, in microseconds. A quota of -1 is no
// limit.
func (r *Record) quota() (quota int64, period uint64, err error) {
	fields := func(dir, file string) []string {
		text, readErr := cgroups.ReadFile(dir, file)
		err = errors.Join(err, readErr)
		return strings.Fields(text)
	}
	var in []string
	if dir := r.CgroupPaths["cpu"]; dir != "" {
		in = append(fields(dir, "cpu.cfs_quota_us"), fields(dir, "cpu.cfs_period_us")...)
	} else {
		in = fields(r.CgroupPaths[""], "cpu.max")
	}
	if err != nil {
		return 0, 0, err
	}
	if len(in) != 2 {
		return 0, 0, fmt.Errorf("%q is no quota and period", in)
	}
	if in[0] == "max" {
		in[0] = "-1"
	}
	if quota, err = strconv.ParseInt(in[0], 10, 64); err != nil {
		return 0, 0, err
	}
	period, err = strconv.ParseUint(in[1], 10, 64)
	return quota, period, err
}
