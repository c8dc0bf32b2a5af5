package doctor

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
)

func checkConfig(f *Facts) []Finding {
	switch c := &f.Config; {
	case c.Err != "":
		return one("config", Error, c.Err, "fix the file, and look at it with: coracled config check "+c.Path)
	case len(c.Warnings) > 0:
		return one("config", Warning, c.Path+": "+strings.Join(c.Warnings, "; "), "edit the file")
	case !c.Exists:
		return one("config", OK, "no "+c.Path+": the defaults hold", "")
	default:
		return one("config", OK, c.Path+" has no fault", "")
	}
}

func checkShim(f *Facts) []Finding {
	if f.Shim.Path == "" {
		return one("shim", Error, f.Shim.Name+" is not installed: no container can be made",
			"install it next to coracled, or name it in shim.binary")
	}
	return one("shim", OK, f.Shim.Path, "")
}

// What is little disk: of the whole, and of bytes that one image can need.
const (
	warnPercent, errPercent = 10, 2
	errBytes                = 100 << 20
)

func checkDisks(f *Facts) []Finding {
	var all []Finding
	for i := range f.Disks {
		all = append(all, checkDisk(&f.Disks[i]))
	}
	return all
}

func checkDisk(d *Disk) Finding {
	f := Finding{Check: "disk", Level: Error}
	at := fmt.Sprintf("%s (%s)", d.Path, d.Purpose)
	room, inodes := "find what takes space with coracle image du; free what no container needs with coracle image prune",
		"free what no container needs with coracle image prune; or recreate the file system with more inodes"
	if d.Purpose == "state" {
		room = "remove pods, and check for other files on it; to enlarge a tmpfs: mount -o remount,size=SIZE " + d.Path
		inodes = "remove pods, and check for other files on it; to raise the limit of a tmpfs: mount -o remount,nr_inodes=NUMBER " + d.Path
	}
	percent := func(free, total uint64) uint64 { return free * 100 / max(total, 1) }
	free := fmt.Sprintf("%s of %s free", units.HumanSize(float64(d.Free)), units.HumanSize(float64(d.Total)))
	switch {
	case d.Err != "":
		f.Message, f.Remedy = at+": "+d.Err, "see why, or name another directory with --"+d.Purpose
	case d.ReadOnly:
		f.Message, f.Remedy = at+" is mounted read-only", "mount it writable; the kernel's log says whether it had errors"
	case d.Purpose == "root" && slices.Contains([]string{"overlay", "nfs", "tmpfs", "ramfs"}, d.Type):
		f.Level, f.Message = Warning, at+" is on "+d.Type
		switch d.Type {
		case "overlay":
			f.Level, f.Remedy = Error, "overlayfs cannot be stacked here: put root on a file system of its own, ext4 or xfs"
		case "nfs":
			f.Level, f.Remedy = Error, "a network file system cannot hold writable layers: put root on a local disk"
		default:
			f.Remedy = "images take memory there and are gone after a reboot: put root on a disk"
		}
	case d.Free < errBytes || percent(d.Free, d.Total) < errPercent:
		f.Message, f.Remedy = at+": "+free, room
	case d.Inodes > 0 && percent(d.InodesFree, d.Inodes) < errPercent:
		f.Message, f.Remedy = fmt.Sprintf("%s: %d of %d inodes free", at, d.InodesFree, d.Inodes), inodes
	case percent(d.Free, d.Total) < warnPercent:
		f.Level, f.Message, f.Remedy = Warning, at+": "+free, room
	case d.Purpose == "state" && d.Inodes > 0 && percent(d.InodesFree, d.Inodes) < warnPercent:
		f.Level, f.Message, f.Remedy = Warning, fmt.Sprintf("%s: %d of %d inodes free", at, d.InodesFree, d.Inodes), inodes
	case d.Purpose == "state" && d.Type != "tmpfs":
		f.Level, f.Message, f.Remedy = Warning, at+" is on "+d.Type+": records are written to a disk that a reboot makes worthless",
			"put state on a tmpfs, as /run is on most machines"
	default:
		f.Level, f.Message = OK, fmt.Sprintf("%s: %s, %s", at, d.Type, free)
	}
	return f
}

func checkCNI(f *Facts) []Finding {
	switch c := &f.CNI; {
	case c.Err != "":
		return one("cni", Error, c.Err, "fix the file, or remove it to use the built-in network; pods are refused meanwhile")
	case len(c.Missing) > 0:
		return one("cni", Error, fmt.Sprintf("%s asks for plugins that are in none of %s: %s", c.File, strings.Join(c.BinDirs, ", "),
			strings.Join(c.Missing, ", ")),
			"install them (package containernetworking-plugins), or name their directory in network.cni_bin_dirs")
	case c.File == "":
		return one("cni", OK, "no configuration in "+c.Dir+": the built-in network is used", "")
	default:
		return one("cni", OK, c.File+" and its plugins are there", "")
	}
}

// checkBridged reports pods on the bridge of an earlier release.
func checkBridged(f *Facts) []Finding {
	if len(f.Daemon.Bridged) == 0 {
		return nil
	}
	return one("network", Warning,
		fmt.Sprintf("on the bridge of an earlier release, where neighbours can forge addresses: %d pods (%s)", len(f.Daemon.Bridged),
			strings.Join(f.Daemon.Bridged, ", ")),
		"recreate them, for example with: kubectl rollout restart; the bridge is removed with the last one")
}

func checkUnmanaged(f *Facts) []Finding {
	all := make([]Finding, 0, len(f.Daemon.Unmanaged))
	for _, u := range f.Daemon.Unmanaged {
		remove := "crictl rm "
		if u.Kind == "pod" {
			remove = "crictl rmp "
		}
		all = append(all, Finding{
			"unmanaged", Warning, u.Kind + " " + u.ID + " is not managed: " + u.Reason,
			"repair its record and restart coracled, or remove all of it: " + remove + u.ID,
		})
	}
	return all
}

func checkDaemon(f *Facts) []Finding {
	d := &f.Daemon
	switch {
	case d.Version != "" && len(d.Conditions) > 0:
		var all []Finding
		for _, c := range d.Conditions {
			all = append(all, Finding{"daemon", Error, "coracled says that it is not ready: " + c, "fix what it names; nothing has to be restarted"})
		}
		return all
	case d.Version != "" && d.Version != d.Mine:
		return one("daemon", Warning, fmt.Sprintf("coracled is %s, this command is %s", d.Version, d.Mine),
			"restart coracled, which leaves containers alone: systemctl restart coracled")
	case d.Version != "":
		return one("daemon", OK, "coracled "+d.Version+" answers on "+d.Socket+" and is ready", "")
	case d.Exists:
		return one("daemon", Error, "nothing answers on "+d.Socket+": "+d.Err,
			"systemctl restart coracled; journalctl -u coracled says why it ended")
	}
	return one("daemon", Warning, "coracled does not run: there is no "+d.Socket,
		"systemctl start coracled, or say where its socket is with --address or --state")
}

// slow is a registry's answer that makes pulls slow too.
const slow = 2 * time.Second

func checkRegistries(f *Facts) []Finding {
	var all []Finding
	for i := range f.Registries {
		all = append(all, checkRegistry(&f.Registries[i]))
	}
	return all
}

func checkRegistry(r *Registry) Finding {
	f := Finding{Check: "registry", Level: Error}
	switch {
	case r.Err != "" && r.Hosts != "":
		f.Level, f.Message, f.Remedy = Warning, r.Host+": "+r.Err, "none is needed where the servers in "+r.Hosts+" have all images"
	case r.Err != "":
		f.Message = r.Host + ": " + r.Err
		switch r.Kind {
		case NoName:
			f.Remedy = "see whether the name is right, and whether /etc/resolv.conf names a server that answers"
		case NoTrust:
			f.Remedy = fmt.Sprintf("name its authority with ca_file in [image.registry.%q], or in /etc/coracle/certs.d", r.Host)
		case NotTLS:
			f.Remedy = fmt.Sprintf("it speaks plain HTTP: set plain_http = true in [image.registry.%q] if it may", r.Host)
		case NoAnswer:
			f.Remedy = "see whether a firewall or a missing proxy (HTTPS_PROXY in coracled's environment) is between"
		case OtherReason:
			f.Remedy = "see whether it runs; docs/images.md says how registries are named"
		}
	case r.Status != http.StatusOK && r.Status != http.StatusUnauthorized:
		f.Level, f.Message, f.Remedy = Warning, fmt.Sprintf("%s answers %s with %d", r.Host, r.URL, r.Status),
			"see whether it is a registry, and whether it is well"
	case r.Took > slow:
		f.Level, f.Message, f.Remedy = Warning, fmt.Sprintf("%s took %.1f s to answer", r.Host, r.Took.Seconds()),
			"pulls will be slow; a mirror may help (docs/images.md)"
	default:
		f.Level, f.Message = OK, fmt.Sprintf("%s answers in %d ms", r.Host, r.Took.Milliseconds())
	}
	return f
}
