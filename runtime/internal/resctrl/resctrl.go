// Package resctrl puts containers into classes of service of Intel RDT and its kin: directories
// of the resctrl file system (config-linux.md#intelrdt). A class that was made for one container
// goes with it; others, and what they allow, stay.
package resctrl

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ErrMissing says that no resctrl file system is mounted.
var ErrMissing = errors.New("no resctrl file system is mounted; mount one on /sys/fs/resctrl if the machine has Intel RDT or the like")

// Root is where the resctrl file system is mounted. ErrMissing if it is not.
func Root() (string, error) {
	const usual = "/sys/fs/resctrl"
	var st unix.Statfs_t
	if err := unix.Statfs(usual, &st); err == nil && st.Type == unix.RDTGROUP_SUPER_MAGIC {
		return usual, nil
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for s := bufio.NewScanner(mounts); s.Scan(); {
		before, after, _ := strings.Cut(s.Text(), " - ") // proc_pid_mountinfo(5)
		if fields := strings.Fields(before); strings.HasPrefix(after, "resctrl ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	return "", ErrMissing
}

// Group is a container's place in the tree.
type Group struct {
	// Root is where the file system is mounted, Class the directory of the class of service.
	Root  string `json:"root"`
	Class string `json:"class"`
	// Own says that the class was made for the container, and goes with it.
	Own bool `json:"own,omitempty"`
	// Monitor is the container's monitoring group, "" if it has none. It goes with the container.
	Monitor string `json:"monitor,omitempty"`
}

// New is the place of a container that is to be made. It changes nothing.
func New(root, id string, r *specs.LinuxIntelRdt) (*Group, error) {
	g := &Group{Root: root, Class: filepath.Join(root, id)}
	if r.ClosID != "" {
		g.Class = filepath.Join(root, r.ClosID)
	}
	_, err := os.Stat(g.Class)
	switch {
	case err == nil:
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case r.ClosID == "":
		g.Own = true
	case len(lines(r)) == 0:
		return nil,
			fmt.Errorf("linux.intelRdt.closID %q: there is no such class in %s; make it, or say by linux.intelRdt.schemata what it allows", r.ClosID,
				root)
	}
	if r.EnableMonitoring {
		g.Monitor = filepath.Join(g.Class, "mon_groups", id)
	}
	return g, nil
}

// lines are what is written to a class's file schemata, in order.
func lines(r *specs.LinuxIntelRdt) []string {
	var out []string
	for _, l := range append([]string{r.L3CacheSchema, r.MemBwSchema}, r.Schemata...) {
		if l != "" {
			out = append(out, l)
		}
	}
	return out
}

// Make makes the class, unless it is there, and the monitoring group. A named class that is there
// has to allow what the configuration says: other containers may be in it.
func (g *Group) Make(r *specs.LinuxIntelRdt) error {
	err := os.Mkdir(g.Class, 0o755)
	exists := errors.Is(err, fs.ErrExist)
	if err != nil && !exists {
		return g.explain("make class of service", err)
	}
	if want := lines(r); len(want) > 0 {
		if exists && r.ClosID != "" {
			if err := g.mustAllow(want); err != nil {
				return err
			}
		}
		if err := g.write(want); err != nil {
			return err
		}
	}
	if g.Monitor != "" {
		if err := os.Mkdir(g.Monitor, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return g.explain("make monitoring group", err)
		}
	}
	return nil
}

func (g *Group) write(schemata []string) error {
	text := strings.Join(schemata, "\n") + "\n"
	if err := os.WriteFile(filepath.Join(g.Class, "schemata"), []byte(text), 0o600); err != nil {
		return g.explain(fmt.Sprintf("write %q to schemata", text), err)
	}
	return nil
}

// Update changes what the class allows. Empty schemas stay as they are.
func (g *Group) Update(l3Cache, memoryBandwidth string) error {
	return g.write(lines(&specs.LinuxIntelRdt{L3CacheSchema: l3Cache, MemBwSchema: memoryBandwidth}))
}

// Add moves a process of one thread into the class. Its children follow it.
func (g *Group) Add(pid int) error {
	for _, dir := range []string{g.Class, g.Monitor} {
		if dir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return g.explain("move the process to its class of service", err)
		}
	}
	return nil
}

// Remove removes what was made for the container. It succeeds if that is gone.
func (g *Group) Remove() error {
	var errs []error
	for _, dir := range []string{g.Monitor, g.Class} {
		if dir == "" || dir == g.Class && !g.Own {
			continue
		}
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// explain adds what the kernel has to say about the last call.
func (g *Group) explain(what string, err error) error {
	err = fmt.Errorf("linux.intelRdt: %s: %w", what, err)
	status, readErr := os.ReadFile(filepath.Join(g.Root, "info", "last_cmd_status"))
	if said := strings.TrimSpace(string(status)); readErr == nil && said != "" && said != "ok" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}
