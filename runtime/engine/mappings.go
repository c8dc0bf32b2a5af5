package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
)

// mapper writes the ids of a user namespace, user_namespaces(7). An ordinary user may map one id,
// its own; for others it has newuidmap(1) and newgidmap(1) do it, which look them up in
// /etc/subuid and /etc/subgid.
type mapper struct {
	// tool is for users and groups, "" to write the file.
	uidTool, gidTool string
	// noGroups says that supplementary groups cannot be set in the namespace: who maps a group
	// without having rights on the host has to give them up first.
	noGroups bool
}

// newMapper is for a container of this process's user.
func newMapper(l *specs.Linux) mapper {
	if !rootless() {
		return mapper{}
	}
	m := mapper{noGroups: groupsDenied()}
	if len(l.UIDMappings)+len(l.GIDMappings) == 0 || mayMap() {
		return m
	}
	if !only(l.UIDMappings, os.Geteuid()) {
		m.uidTool = "newuidmap"
	}
	if only(l.GIDMappings, os.Getegid()) {
		m.noGroups = true
	} else {
		m.gidTool = "newgidmap"
	}
	return m
}

// mayMap says whether this process may map any id of its own user namespace.
func mayMap() bool { return permitted()>>unix.CAP_SETUID&1 != 0 && permitted()>>unix.CAP_SETGID&1 != 0 }

// only says whether nothing but one id is mapped.
func only(list []specs.LinuxIDMapping, id int) bool {
	return len(list) == 1 && list[0].Size == 1 && int(list[0].HostID) == id
}

// groupsDenied says whether this process's user namespace cannot set groups.
func groupsDenied() bool {
	said, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(said)) == "deny"
}

// write maps the ids of the user namespace that a process of ours is in.
func (m mapper) write(pid int, maps *plan.Mappings) error {
	if m.noGroups && m.gidTool == "" {
		// Not needed where it is denied already.
		if err := writeProc(pid, "setgroups", "deny"); err != nil && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("give up groups in the user namespace: %w", err)
		}
	}
	for _, f := range []struct {
		name, tool string
		list       []plan.Mapping
	}{{"uid_map", m.uidTool, maps.UIDs}, {"gid_map", m.gidTool, maps.GIDs}} {
		var err error
		switch {
		case len(f.list) == 0:
		case f.tool == "":
			err = writeProc(pid, f.name, lines(f.list))
		default:
			err = mapWith(f.tool, pid, f.list)
		}
		if err != nil {
			return fmt.Errorf("map the ids of the user namespace: %w", err)
		}
	}
	return nil
}

func lines(list []plan.Mapping) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "%d %d %d\n", r.Inside, r.Outside, r.Size)
	}
	return b.String()
}

func writeProc(pid int, name, text string) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/%s", pid, name), []byte(text), 0)
}

// mapWith runs newuidmap or newgidmap.
func mapWith(tool string, pid int, list []plan.Mapping) error {
	path, err := exec.LookPath(tool)
	if err != nil {
		return fmt.Errorf("%w; install it (Debian: uidmap), or map no id but your own: containerID 0, hostID %d, size 1", err, ownID(tool))
	}
	args := []string{strconv.Itoa(pid)}
	for _, r := range list {
		for _, n := range []uint32{r.Inside, r.Outside, r.Size} {
			args = append(args, strconv.FormatUint(uint64(n), 10))
		}
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		file := map[string]string{"newuidmap": "/etc/subuid", "newgidmap": "/etc/subgid"}[tool]
		return fmt.Errorf("%s: %w: %s; see whether %s gives these ids to the user", path, err, bytes.TrimSpace(out), file)
	}
	return nil
}

func ownID(tool string) int {
	if tool == "newgidmap" {
		return os.Getegid()
	}
	return os.Geteuid()
}
