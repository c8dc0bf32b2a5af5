package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/kernfile"
)

// makeV1 makes the directories of version 1 and the device rules, which are most of the work
// on nine hierarchies. The library makes every parent again, reads the rules back before and
// after it writes them, and takes three times as long. What is unusual is left to it; false
// says so.
func (c *cgroup) makeV1() (bool, error) {
	fresh := map[string]bool{}
	for controller, dir := range c.manager.GetPaths() {
		err := unix.Mkdir(dir, 0o755)
		if errors.Is(err, unix.ENOENT) && controller != "cpuset" {
			err = os.MkdirAll(dir, 0o755)
		}
		switch {
		case errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.ENOENT):
			return false, nil // the library sets up the parents
		case err != nil:
			return false, fmt.Errorf("make cgroup %s: %w", dir, err)
		default:
			fresh[controller] = true
		}
	}
	if dir, ok := c.manager.GetPaths()["cpuset"]; ok {
		if done, err := inheritCPUs(dir); err != nil || !done {
			return false, err
		}
	}
	rules, ok := simpleRules(c.config.Resources.Devices)
	if dir := c.manager.Path("devices"); ok && dir != "" && fresh["devices"] && !c.config.Rootless {
		if err := writeRules(dir, rules); err != nil {
			return false, fmt.Errorf("set device rules: %w", err)
		}
		c.config.Resources.SkipDevices = true
	}
	return true, nil
}

// inheritCPUs gives a new cpuset its parent's CPUs and memory nodes: with none, no process may
// enter (cpuset(7)). Limits of its own are set later, and can only be fewer.
func inheritCPUs(dir string) (bool, error) {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := kernfile.Read(filepath.Join(dir, file))
		if err != nil {
			return false, nil // mounted without the prefix
		}
		if string(bytes.TrimSpace(have)) != "" {
			continue
		}
		parent, err := kernfile.Read(filepath.Join(filepath.Dir(dir), file))
		if err != nil || string(bytes.TrimSpace(parent)) == "" {
			return false, nil
		}
		if err := cgroups.WriteFile(dir, file, string(bytes.TrimSpace(parent))); err != nil {
			return false, err
		}
	}
	return true, nil
}

type deviceRule struct{ file, value string }

// writeRules writes rules, of which the kernel takes one at a time.
func writeRules(dir string, rules []deviceRule) error {
	open, fd := "", -1
	closeOpen := func() {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	defer func() { closeOpen() }()
	for _, r := range rules {
		if r.file != open {
			closeOpen()
			var err error
			if fd, err = unix.Open(filepath.Join(dir, r.file), unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
				return fmt.Errorf("open %s: %w", filepath.Join(dir, r.file), err)
			}
			open = r.file
		}
		if _, err := unix.Write(fd, []byte(r.value)); err != nil {
			return fmt.Errorf("write %q to %s: %w", r.value, filepath.Join(dir, r.file), err)
		}
	}
	return nil
}

// simpleRules are the writes for rules that first deny everything and then only allow, or
// that allow everything. The order of all others matters in ways that the library knows.
func simpleRules(list []*devices.Rule) ([]deviceRule, bool) {
	all := func(r *devices.Rule) bool { return r.CgroupString() == "a *:* rwm" }
	if len(list) == 0 || !all(list[0]) {
		return nil, false
	}
	for _, r := range list[1:] {
		if !r.Allow {
			return nil, false
		}
	}
	if list[0].Allow {
		return []deviceRule{{"devices.allow", "a"}}, true
	}
	out := []deviceRule{{"devices.deny", "a"}}
	seen := map[string]bool{}
	for _, r := range list[1:] {
		if s := r.CgroupString(); !seen[s] {
			seen[s] = true
			out = append(out, deviceRule{"devices.allow", s})
		}
	}
	return out, true
}
