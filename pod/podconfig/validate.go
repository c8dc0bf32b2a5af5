package podconfig

import (
	"cmp"
	"math"
	"net/netip"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// Limits on what callers may give.
const (
	maxName     = 253 // as Kubernetes object names
	maxHostname = 64  // the kernel's __NEW_UTS_LEN
)

var (
	sysctlNames = regexp.MustCompile(`^[a-zA-Z0-9_-]+([./][a-zA-Z0-9_-]+)+$`)
	cpusets     = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	hugepages   = regexp.MustCompile(`^[0-9]+[KMG]B$`)
	unifiedKeys = regexp.MustCompile(`^[a-z0-9_]+(\.[a-zA-Z0-9_]+)+$`)
)

// checkHostname takes what sethostname(2) takes, unless it would be more than one word in
// /etc/hosts and /etc/hostname: blanks, control characters and '#' end a name there. The kubelet
// sends names that end with a dot (name.subdomain.namespace.svc.) where it knows no cluster domain.
func checkHostname(name string) error {
	if len(name) > maxHostname {
		return errdefs.Errorf(errdefs.ErrInvalid, "hostname %q has %d bytes; the kernel takes %d", name, len(name), maxHostname)
	}
	separates := func(r rune) bool { return r == '#' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if strings.ContainsFunc(name, separates) {
		return errdefs.Errorf(errdefs.ErrInvalid, "hostname %q has a blank, a control character or '#', which end a name in /etc/hosts", name)
	}
	return nil
}

// Validate checks everything about a pod that can be checked without touching anything.
func (c *Pod) Validate(handlers Handlers, d CgroupDriver) error {
	for _, f := range []struct{ field, value string }{
		{"name", c.Name}, {"namespace", c.Namespace}, {"uid", c.UID},
	} {
		if err := checkName(f.field, f.value); err != nil {
			return err
		}
	}
	if err := checkHostname(c.Hostname); err != nil {
		return err
	}
	if c.LogDirectory != "" && !filepath.IsAbs(c.LogDirectory) {
		return errdefs.Errorf(errdefs.ErrInvalid, "log directory %q is not an absolute path", c.LogDirectory)
	}
	if _, known := handlers()[c.RuntimeHandler]; c.RuntimeHandler != "" && !known {
		return errdefs.Errorf(errdefs.ErrInvalid, "unknown runtime handler %q; there are %q", c.RuntimeHandler, handlers.names())
	}
	if err := c.Namespaces.validatePod(); err != nil {
		return err
	}
	if err := c.DNS.validate(); err != nil {
		return err
	}
	if err := validatePorts(c.Ports); err != nil {
		return err
	}
	if err := c.validateSysctls(); err != nil {
		return err
	}
	return validateCgroupParent(c.CgroupParent, d)
}

func checkName(field, value string) error {
	switch {
	case value == "":
		return errdefs.Errorf(errdefs.ErrInvalid, "%s is missing", field)
	case len(value) > maxName:
		return errdefs.Errorf(errdefs.ErrInvalid, "%s is longer than %d bytes", field, maxName)
	case strings.ContainsFunc(value, func(r rune) bool { return r == '/' || !unicode.IsPrint(r) }):
		return errdefs.Errorf(errdefs.ErrInvalid, "%s %q has a slash or an unprintable character in it", field, value)
	}
	return nil
}

func (n *Namespaces) validatePod() error {
	if err := n.validateUser(); err != nil {
		return err
	}
	if n.User == NamespacePod && (n.Network == NamespaceNode || n.PID == NamespaceNode || n.IPC == NamespaceNode) {
		return errdefs.Errorf(errdefs.ErrInvalid,
			"a pod with a user namespace needs network, pid and ipc namespaces that belong to it, not the host's")
	}
	if !slices.Contains([]NamespaceMode{"", NamespacePod, NamespaceNode}, n.Network) {
		return errdefs.Errorf(errdefs.ErrInvalid, "network namespace mode %q; a pod has %q or %q", n.Network, NamespacePod, NamespaceNode)
	}
	if !slices.Contains([]NamespaceMode{"", NamespacePod, NamespaceNode}, n.IPC) {
		return errdefs.Errorf(errdefs.ErrInvalid, "ipc namespace mode %q; a pod has %q or %q", n.IPC, NamespacePod, NamespaceNode)
	}
	if !slices.Contains([]NamespaceMode{"", NamespacePod, NamespaceContainer, NamespaceNode}, n.PID) {
		return errdefs.Errorf(errdefs.ErrInvalid, "pid namespace mode %q is not one that a pod can have", n.PID)
	}
	return nil
}

// validateUser wants of a user namespace what Kubernetes gives it: one range of ids, and the
// same for users and groups, from 0 on.
func (n *Namespaces) validateUser() error {
	switch n.User {
	case "", NamespaceNode:
		if len(n.Users.UIDs)+len(n.Users.GIDs) > 0 {
			return errdefs.Errorf(errdefs.ErrInvalid, "id mappings without a user namespace of the pod")
		}
		return nil
	case NamespacePod:
	default:
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace mode %q; a pod has %q or %q", n.User, NamespacePod, NamespaceNode)
	}
	if len(n.Users.UIDs) != 1 || len(n.Users.GIDs) != 1 || n.Users.UIDs[0] != n.Users.GIDs[0] {
		return errdefs.Errorf(errdefs.ErrInvalid,
			"user namespace with %d ranges of user ids and %d of group ids; one range, the same for both, is supported",
			len(n.Users.UIDs), len(n.Users.GIDs))
	}
	if n.Users.UIDs[0].Container != 0 {
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace whose ids begin with %d; id 0 of the container must be mapped",
			n.Users.UIDs[0].Container)
	}
	return validateIDMaps("user namespace", n.Users)
}

func (d *DNS) validate() error {
	for _, s := range d.Servers {
		if _, err := netip.ParseAddr(s); err != nil {
			return errdefs.Errorf(errdefs.ErrInvalid, "dns server %q is not an IP address", s)
		}
	}
	for _, s := range slices.Concat(d.Searches, d.Options) {
		if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
			return errdefs.Errorf(errdefs.ErrInvalid, "dns search or option %q is empty or has white space in it", s)
		}
	}
	return nil
}

// ProtocolName is the port's protocol, TCP if it does not say.
func (p *Port) ProtocolName() string {
	if p.Protocol == "" {
		return "tcp"
	}
	return p.Protocol
}

func validatePorts(ports []Port) error {
	type binding struct {
		protocol, ip string
		port         int32
	}
	seen := map[binding]bool{}
	for i := range ports {
		p := &ports[i]
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.ProtocolName()) {
			return errdefs.Errorf(errdefs.ErrInvalid, "port protocol %q is not tcp, udp or sctp", p.Protocol)
		}
		if p.ContainerPort < 0 || p.ContainerPort > 65535 || p.ContainerPort == 0 && p.HostPort != 0 {
			return errdefs.Errorf(errdefs.ErrInvalid, "container port %d is not between 1 and 65535", p.ContainerPort)
		}
		if p.HostPort < 0 || p.HostPort > 65535 {
			return errdefs.Errorf(errdefs.ErrInvalid, "host port %d is not between 0 and 65535", p.HostPort)
		}
		if p.HostIP != "" {
			if _, err := netip.ParseAddr(p.HostIP); err != nil {
				return errdefs.Errorf(errdefs.ErrInvalid, "host ip %q is not an IP address", p.HostIP)
			}
		}
		if p.HostPort == 0 {
			continue
		}
		b := binding{p.ProtocolName(), p.HostIP, p.HostPort}
		if seen[b] {
			return errdefs.Errorf(errdefs.ErrInvalid, "host port %d/%s is asked for twice", p.HostPort, b.protocol)
		}
		seen[b] = true
	}
	return nil
}

// dotted is a sysctl's name with dots, as nspin takes it. With slashes as separators a
// dot is part of a name (an interface's), and is written as a slash (sysctl.d(5)).
func dotted(name string) string {
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		return strings.Map(func(r rune) rune {
			switch r {
			case '/':
				return '.'
			case '.':
				return '/'
			}
			return r
		}, name)
	}
	return name
}

// DottedSysctls are the pod's sysctls by their dotted names.
func (c *Pod) DottedSysctls() map[string]string {
	all := map[string]string{}
	for name, value := range c.Sysctls {
		all[dotted(name)] = value
	}
	return all
}

// validateSysctls lets only those be set that belong to a namespace of the pod's own:
// any other would change the host.
func (c *Pod) validateSysctls() error {
	for name := range c.Sysctls {
		if !sysctlNames.MatchString(name) {
			return errdefs.Errorf(errdefs.ErrInvalid, "%q is not a sysctl's name", name)
		}
		name = dotted(name)
		var host bool
		switch {
		case strings.HasPrefix(name, "net."):
			host = c.HostNetwork()
		case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"),
			strings.HasPrefix(name, "fs.mqueue."), name == "kernel.sem":
			host = c.HostIPC()
		default:
			return errdefs.Errorf(errdefs.ErrInvalid, "sysctl %s is not of a namespace that pods have", name)
		}
		if host {
			return errdefs.Errorf(errdefs.ErrInvalid, "sysctl %s would change the host, whose namespace the pod uses", name)
		}
	}
	return nil
}

func validateCgroupParent(parent string, d CgroupDriver) error {
	switch {
	case parent == "":
		return nil
	case slices.Contains(strings.Split(parent, "/"), ".."):
		return errdefs.Errorf(errdefs.ErrInvalid, "cgroup parent %q has '..' in it", parent)
	case d == Systemd && !strings.HasSuffix(path.Base(parent), ".slice"):
		return errdefs.Errorf(errdefs.ErrInvalid, "cgroup parent %q is not a systemd slice, which the cgroup driver %q needs", parent, d)
	case strings.Contains(parent, ":"):
		return errdefs.Errorf(errdefs.ErrInvalid, "cgroup parent %q has ':' in it", parent)
	}
	return nil
}

// Validate checks limits.
func (r *Resources) Validate() error {
	for _, f := range []struct {
		field string
		value int64
		least int64
	}{
		{"cpu period", r.CPUPeriod, 0},
		{"cpu quota", r.CPUQuota, -1},
		{"cpu shares", r.CPUShares, 0},
		{"memory limit", r.MemoryLimit, -1},
		{"memory+swap limit", r.MemorySwapLimit, -1},
		{"oom score adjustment", r.OOMScoreAdj, -1000},
	} {
		if f.value < f.least {
			return errdefs.Errorf(errdefs.ErrInvalid, "%s %d is less than %d", f.field, f.value, f.least)
		}
	}
	if r.OOMScoreAdj > 1000 {
		return errdefs.Errorf(errdefs.ErrInvalid, "oom score adjustment %d is more than 1000", r.OOMScoreAdj)
	}
	if r.MemoryLimit > 0 && r.MemorySwapLimit > 0 && r.MemorySwapLimit < r.MemoryLimit {
		return errdefs.Errorf(errdefs.ErrInvalid, "memory+swap limit %d is less than the memory limit %d", r.MemorySwapLimit, r.MemoryLimit)
	}
	for _, set := range []string{r.CpusetCPUs, r.CpusetMems} {
		if set != "" && !cpusets.MatchString(set) {
			return errdefs.Errorf(errdefs.ErrInvalid, "cpuset %q is not a list like 0-3,7", set)
		}
	}
	for size := range r.Hugepages {
		if !hugepages.MatchString(size) {
			return errdefs.Errorf(errdefs.ErrInvalid, "huge page size %q is not like 2MB", size)
		}
	}
	for key := range r.Unified {
		if !unifiedKeys.MatchString(key) {
			return errdefs.Errorf(errdefs.ErrInvalid, "%q is not the name of a cgroup v2 file", key)
		}
	}
	return nil
}

// validateIDMaps checks the mappings of what: the ranges of a user namespace, as
// user_namespaces(7) has them.
func validateIDMaps(what string, maps IDMaps) error {
	if (len(maps.UIDs) == 0) != (len(maps.GIDs) == 0) {
		return errdefs.Errorf(errdefs.ErrInvalid, "%s maps %d ranges of user ids and %d of group ids; both or none are needed", what,
			len(maps.UIDs),
			len(maps.GIDs))
	}
	for _, list := range [][]IDMap{maps.UIDs, maps.GIDs} {
		for _, m := range list {
			if m.Length == 0 || uint64(m.Host)+uint64(m.Length) > math.MaxUint32 || uint64(m.Container)+uint64(m.Length) > math.MaxUint32 {
				return errdefs.Errorf(errdefs.ErrInvalid, "%s maps ids %d to %d, %d of them: not a range of ids", what, m.Container, m.Host, m.Length)
			}
		}
	}
	return nil
}

// FitsPod wants a container's user namespace to be its pod's: all containers share one, so
// that they can share all else.
func (n *Namespaces) FitsPod(p *Namespaces) error {
	own := p.User == NamespacePod
	switch {
	case n.User == "":
		return nil
	case (n.User == NamespacePod) != own:
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace mode %q in a pod with %q", n.User, cmp.Or(p.User, NamespaceNode))
	case own && (n.Users.UIDs[0] != p.Users.UIDs[0] || n.Users.GIDs[0] != p.Users.GIDs[0]):
		return errdefs.Errorf(errdefs.ErrInvalid, "user namespace with other ids than the pod's")
	}
	return nil
}
