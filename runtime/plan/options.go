package plan

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountOption is what one option of config-linux.md's tables does.
type mountOption struct {
	clear       bool
	flag        uintptr // of mount(2)
	attr        Attrs   // of mount_setattr(2), the same
	recursive   bool    // for all mounts below, too
	propagation uintptr
}

var mountOptions = map[string]mountOption{
	"ro": {flag: unix.MS_RDONLY, attr: unix.MOUNT_ATTR_RDONLY}, "rw": {clear: true, flag: unix.MS_RDONLY, attr: unix.MOUNT_ATTR_RDONLY},
	"nosuid": {flag: unix.MS_NOSUID, attr: unix.MOUNT_ATTR_NOSUID}, "suid": {clear: true, flag: unix.MS_NOSUID, attr: unix.MOUNT_ATTR_NOSUID},
	"nodev": {flag: unix.MS_NODEV, attr: unix.MOUNT_ATTR_NODEV}, "dev": {clear: true, flag: unix.MS_NODEV, attr: unix.MOUNT_ATTR_NODEV},
	"noexec": {flag: unix.MS_NOEXEC, attr: unix.MOUNT_ATTR_NOEXEC}, "exec": {clear: true, flag: unix.MS_NOEXEC, attr: unix.MOUNT_ATTR_NOEXEC},
	"noatime":       {flag: unix.MS_NOATIME, attr: unix.MOUNT_ATTR_NOATIME},
	"atime":         {clear: true, flag: unix.MS_NOATIME, attr: unix.MOUNT_ATTR_NOATIME},
	"nodiratime":    {flag: unix.MS_NODIRATIME, attr: unix.MOUNT_ATTR_NODIRATIME},
	"diratime":      {clear: true, flag: unix.MS_NODIRATIME, attr: unix.MOUNT_ATTR_NODIRATIME},
	"strictatime":   {flag: unix.MS_STRICTATIME, attr: unix.MOUNT_ATTR_STRICTATIME},
	"nostrictatime": {clear: true, flag: unix.MS_STRICTATIME, attr: unix.MOUNT_ATTR_STRICTATIME},
	"relatime":      {flag: unix.MS_RELATIME}, "norelatime": {clear: true, flag: unix.MS_RELATIME},
	"nosymfollow": {flag: unix.MS_NOSYMFOLLOW, attr: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"symfollow":   {clear: true, flag: unix.MS_NOSYMFOLLOW, attr: unix.MOUNT_ATTR_NOSYMFOLLOW},
	"sync":        {flag: unix.MS_SYNCHRONOUS}, "async": {clear: true, flag: unix.MS_SYNCHRONOUS},
	"dirsync": {flag: unix.MS_DIRSYNC}, "mand": {flag: unix.MS_MANDLOCK}, "nomand": {clear: true, flag: unix.MS_MANDLOCK},
	"iversion": {flag: unix.MS_I_VERSION}, "noiversion": {clear: true, flag: unix.MS_I_VERSION},
	"lazytime": {flag: unix.MS_LAZYTIME}, "nolazytime": {clear: true, flag: unix.MS_LAZYTIME},
	"silent": {flag: unix.MS_SILENT}, "loud": {clear: true, flag: unix.MS_SILENT},
	"remount": {flag: unix.MS_REMOUNT}, "bind": {flag: unix.MS_BIND}, "rbind": {flag: unix.MS_BIND | unix.MS_REC}, "defaults": {},
	"private": {propagation: unix.MS_PRIVATE}, "rprivate": {propagation: unix.MS_PRIVATE | unix.MS_REC},
	"slave": {propagation: unix.MS_SLAVE}, "rslave": {propagation: unix.MS_SLAVE | unix.MS_REC},
	"shared": {propagation: unix.MS_SHARED}, "rshared": {propagation: unix.MS_SHARED | unix.MS_REC},
	"unbindable": {propagation: unix.MS_UNBINDABLE}, "runbindable": {propagation: unix.MS_UNBINDABLE | unix.MS_REC},
	"rro": {attr: unix.MOUNT_ATTR_RDONLY, recursive: true}, "rrw": {clear: true, attr: unix.MOUNT_ATTR_RDONLY, recursive: true},
	"rnosuid": {attr: unix.MOUNT_ATTR_NOSUID, recursive: true}, "rsuid": {clear: true, attr: unix.MOUNT_ATTR_NOSUID, recursive: true},
	"rnodev": {attr: unix.MOUNT_ATTR_NODEV, recursive: true}, "rdev": {clear: true, attr: unix.MOUNT_ATTR_NODEV, recursive: true},
	"rnoexec": {attr: unix.MOUNT_ATTR_NOEXEC, recursive: true}, "rexec": {clear: true, attr: unix.MOUNT_ATTR_NOEXEC, recursive: true},
	"rnoatime": {attr: unix.MOUNT_ATTR_NOATIME, recursive: true}, "ratime": {clear: true, attr: unix.MOUNT_ATTR_NOATIME, recursive: true},
	"rnodiratime":    {attr: unix.MOUNT_ATTR_NODIRATIME, recursive: true},
	"rdiratime":      {clear: true, attr: unix.MOUNT_ATTR_NODIRATIME, recursive: true},
	"rstrictatime":   {attr: unix.MOUNT_ATTR_STRICTATIME, recursive: true},
	"rnostrictatime": {clear: true, attr: unix.MOUNT_ATTR_STRICTATIME, recursive: true},
	"rrelatime":      {recursive: true}, "rnorelatime": {clear: true, recursive: true},
	"rnosymfollow": {attr: unix.MOUNT_ATTR_NOSYMFOLLOW, recursive: true},
	"rsymfollow":   {clear: true, attr: unix.MOUNT_ATTR_NOSYMFOLLOW, recursive: true},
}

// options are a mount's options, sorted out.
type options struct {
	flags            uintptr // of mount(2)
	set, clear       Attrs
	setAll, clearAll Attrs
	propagation      uintptr
	data             []string // the file system's own
	copyUp           bool
	idmap, idmapAll  bool
}

func parseOptions(list []string) options {
	var o options
	for _, name := range list {
		switch name {
		case "tmpcopyup":
			o.copyUp = true
			continue
		case "idmap":
			o.idmap = true
			continue
		case "ridmap":
			o.idmap, o.idmapAll = true, true
			continue
		}
		opt, known := mountOptions[name]
		switch {
		case !known:
			o.data = append(o.data, name)
		case opt.propagation != 0:
			o.propagation = opt.propagation
		case opt.recursive && opt.clear:
			o.clearAll, o.setAll = o.clearAll|opt.attr, o.setAll&^opt.attr
		case opt.recursive:
			o.setAll, o.clearAll = o.setAll|opt.attr, o.clearAll&^opt.attr
		case opt.clear:
			o.flags &^= opt.flag
			o.clear, o.set = o.clear|opt.attr, o.set&^opt.attr
		default:
			o.flags |= opt.flag
			o.set, o.clear = o.set|opt.attr, o.clear&^opt.attr
		}
	}
	return o
}

// flat are options without the recursive ones, in whose place are those for one mount.
func flat(list []string) []string {
	out := make([]string, len(list))
	for i, name := range list {
		if mountOptions[name].recursive {
			name = name[len("r"):]
		}
		out[i] = name
	}
	return out
}

// withTimes adds the MOUNT_ATTR mask that the kernel wants cleared when one of the access
// time modes is set: they are a field of several bits.
func withTimes(set, clear Attrs) (Attrs, Attrs) {
	const modes = unix.MOUNT_ATTR_NOATIME | unix.MOUNT_ATTR_STRICTATIME
	if (set|clear)&modes != 0 {
		clear = clear&^modes | unix.MOUNT_ATTR__ATIME
	}
	return set, clear
}

// attrsOf are the flags of mount(2) that fsmount(2) has, too.
func attrsOf(flags uintptr) Attrs {
	var set Attrs
	for _, o := range mountOptions {
		if !o.clear && !o.recursive && o.flag != 0 && flags&o.flag == o.flag {
			set |= o.attr
		}
	}
	return set
}

// flagNames writes flags of mount(2) as mount(8) does.
func flagNames(flags uintptr) string {
	var out []string
	for name, o := range mountOptions {
		if !o.clear && !o.recursive && o.flag != 0 && name != "rbind" && flags&o.flag == o.flag {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
