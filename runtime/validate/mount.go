package validate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// coverable are the files of proc that may be covered (they show the host's figures, and
// file systems such as lxcfs show the container's); nothing else in proc may: a program that
// trusts /proc would be deceived.
var coverable = map[string]bool{
	"/proc/cpuinfo": true, "/proc/diskstats": true, "/proc/loadavg": true, "/proc/meminfo": true, "/proc/net/dev": true,
	"/proc/slabinfo": true, "/proc/stat": true, "/proc/swaps": true, "/proc/uptime": true, "/proc/sys/kernel/ns_last_pid": true,
	"/proc/sys/crypto/fips_enabled": true,
}

// MayMountInProc says whether something may be mounted at a clean path below /proc.
func MayMountInProc(path string) bool { return coverable[path] }

// generalOptions are those of config-linux.md#linux-mount-options: the kernel's, and what
// runtimes add. All others are the file system's own.
var generalOptions = func() map[string]bool {
	set := map[string]bool{}
	for _, o := range strings.Fields(`ro rw nosuid suid nodev dev noexec exec noatime atime nodiratime diratime strictatime
		nostrictatime relatime norelatime nosymfollow symfollow sync async dirsync mand nomand iversion noiversion lazytime
		nolazytime silent loud remount bind rbind defaults private rprivate slave rslave shared rshared unbindable runbindable
		rro rrw rnosuid rsuid rnodev rdev rnoexec rexec rnoatime ratime rnodiratime rdiratime rstrictatime rnostrictatime
		rrelatime rnorelatime rnosymfollow rsymfollow idmap ridmap tmpcopyup`) {
		set[o] = true
	}
	return set
}()

// IsGeneralOption says whether a mount option is one that mounts of all types can have.
func IsGeneralOption(name string) bool { return generalOptions[name] }

func checkMount(i int, m *specs.Mount) error {
	bad := func(field, format string, args ...any) error {
		return invalid(fmt.Sprintf("mounts[%d].%s", i, field), format, args...)
	}
	if m.Destination == "" {
		return bad("destination", "is empty, give an absolute path in the container")
	}
	if slices.ContainsFunc([]string{m.Destination, m.Source, m.Type}, hasZero) {
		f := fmt.Sprintf("mounts[%d].", i)
		return texts{{f + "destination", m.Destination}, {f + "source", m.Source}, {f + "type", m.Type}}.check()
	}
	for k, o := range m.Options {
		if hasZero(o) {
			return checkText(fmt.Sprintf("mounts[%d].options[%d]", i, k), o)
		}
	}
	bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
	switch {
	case bind && m.Source == "":
		return bad("source", "is empty, a bind mount at %q needs a source", m.Destination)
	case !bind && m.Type == "":
		return bad("type", "is empty, give a file system such as tmpfs for %q, or bind", m.Destination)
	}
	if bind {
		for k, o := range m.Options {
			if !generalOptions[o] {
				return bad(fmt.Sprintf("options[%d]", k), "%q is one of file systems, which bind mounts do not take; remove it", o)
			}
		}
	}
	target := path.Clean("/" + m.Destination)
	if target == "/proc" && !bind && m.Type != "proc" {
		return bad("type", "%q is at /proc and not of type proc, mount it elsewhere", m.Type)
	}
	if strings.HasPrefix(target, "/proc/") && !coverable[target] {
		return bad("destination", "%q is inside /proc, mount it elsewhere", m.Destination)
	}
	return checkIDMappings(i, m, bind)
}

func checkIDMappings(i int, m *specs.Mount, bind bool) error {
	field := fmt.Sprintf("mounts[%d].uidMappings", i)
	other := fmt.Sprintf("mounts[%d].gidMappings", i)
	switch {
	case len(m.UIDMappings)+len(m.GIDMappings) == 0:
		return nil
	case !bind:
		return invalid(field, "of a mount of type %q, only bind mounts can have id mappings", m.Type)
	case len(m.UIDMappings) == 0:
		return invalid(field, "is missing, gidMappings does not do without it")
	case len(m.GIDMappings) == 0:
		return invalid(other, "is missing, uidMappings does not do without it")
	}
	if err := checkMappings(field, m.UIDMappings); err != nil {
		return err
	}
	return checkMappings(other, m.GIDMappings)
}

func hasZero(s string) bool { return strings.IndexByte(s, 0) >= 0 }
