package announce

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// record is what sysctls were before, by short names: "ndp" for IPv6's proxy_ndp, "4/2" and "6/2"
// for the proxy_delay of the interface with that index, which may get another name. Earlier
// releases wrote the name, as in "4eth0". It is the sink's alias, such as "4/2=80 6/2=80 ndp=0".
type record map[string]string

// longestAlias is the kernel's limit (IFALIASZ), with the null byte.
const longestAlias = 255

const proxyNDP = "ndp"

func parseRecord(alias string) record {
	r := record{}
	for _, text := range strings.Fields(alias) {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			continue
		}
		if family := name[:1]; name != proxyNDP && !strings.Contains(name, "/") && (family == "4" || family == "6") {
			if l, err := netlink.LinkByName(name[1:]); err == nil {
				name = delayOf(family == "6", l.Attrs().Index)
			}
		}
		if path, _ := file(name); path != "" {
			r[name] = value
		}
	}
	return r
}

func (r record) String() string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		texts = append(texts, name+"="+r[name])
	}
	return strings.Join(texts, " ")
}

func (r record) clone() record { return maps.Clone(r) }

// delayOf is the short name of the proxy_delay of a family and an interface.
func delayOf(ipv6 bool, link int) string {
	if ipv6 {
		return "6/" + strconv.Itoa(link)
	}
	return "4/" + strconv.Itoa(link)
}

// file is where a sysctl is, and what we set it to. The path of an interface that has gone is "".
func file(name string) (path, ours string) {
	const root = "/proc/sys/net/"
	if name == proxyNDP {
		// The one for all interfaces: by that of one interface, the kernel answers no solicitation
		// that is sent to the address itself, with which neighbours check that it is still there.
		return root + "ipv6/conf/all/proxy_ndp", "1"
	}
	family, number, _ := strings.Cut(name, "/")
	index, err := strconv.Atoi(number)
	if err != nil {
		return "", ""
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return "", ""
	}
	switch family {
	case "4":
		return root + "ipv4/neigh/" + l.Attrs().Name + "/proxy_delay", "0"
	case "6":
		return root + "ipv6/neigh/" + l.Attrs().Name + "/proxy_delay", "0"
	}
	return "", ""
}

// ensureSysctls has the kernel answer on an interface, and at once.
func (s *state) ensureSysctls(l link, ipv6 bool) error {
	names, family := []string{delayOf(ipv6, l.index)}, "ipv4"
	if ipv6 {
		names, family = append(names, proxyNDP), "ipv6"
	}
	forwards, err := readSysctl("/proc/sys/net/" + family + "/conf/" + l.name + "/forwarding")
	if err != nil {
		return err
	}
	if forwards == "0" {
		return fmt.Errorf("interface %s does not forward packets: set net.%s.conf.%s.forwarding=1", l.name, family, l.name)
	}
	for _, name := range names {
		path, ours := file(name)
		was, err := readSysctl(path)
		if err != nil {
			return err
		}
		if was == ours {
			continue
		}
		if _, known := s.before[name]; known {
			s.reset++ // another program has set it since, which is not ours to bring back
		} else {
			s.before[name] = was
			if text := s.before.String(); len(text) >= longestAlias {
				delete(s.before, name) // it stays as it is set
			} else if err := netlink.LinkSetAlias(s.sink, text); err != nil {
				delete(s.before, name)
				return fmt.Errorf("record what %s was: %w", path, err)
			}
		}
		if err := os.WriteFile(path, []byte(ours), 0); err != nil {
			return fmt.Errorf("set %s: %w", path, err)
		}
	}
	return nil
}

func readSysctl(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// restore sets the sysctls to what they were, unless another program has set them meanwhile, or
// needs them: then they stay. If that is another cluster of this machine, it is for that to restore
// them. It is called when nothing is announced any more.
func (s *state) restore() error {
	others, err := s.otherSinks()
	if err != nil {
		return err
	}
	var errs []error
	for name, value := range s.before {
		path, ours := file(name)
		now, err := readSysctl(path)
		if path == "" || errors.Is(err, fs.ErrNotExist) || err == nil && now != ours {
			continue
		}
		if heir := heirOf(name, others); err == nil && heir != nil {
			err = heir.inherit(name, value)
		} else if err == nil && (name != proxyNDP || !s.needNDP()) {
			err = os.WriteFile(path, []byte(value), 0)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("set %s back to %s: %w", path, value, err))
		}
	}
	return errors.Join(errs...)
}

// otherSink is that of another cluster of this machine.
type otherSink struct {
	netlink.Link
	before record
	needs  map[string]bool // the short names of sysctls
}

// otherSinks returns those of this machine that announce something.
func (s *state) otherSinks() (all []*otherSink, err error) {
	kind, _, _ := strings.Cut(s.name, "lb")
	links, err := list(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if l.Type() != "veth" || l.Attrs().Name == s.name || !strings.HasPrefix(l.Attrs().Name, kind+"lb") {
			continue
		}
		announced, err := routesTo(l)
		if err != nil {
			return nil, err
		}
		other := &otherSink{l, parseRecord(l.Attrs().Alias), map[string]bool{}}
		for e := range s.entries {
			if announced[e.address] {
				other.needs[delayOf(e.address.Is6(), e.link)] = true
				other.needs[proxyNDP] = other.needs[proxyNDP] || e.address.Is6()
			}
		}
		all = append(all, other)
	}
	return all, nil
}

// heirOf returns the sink whose cluster needs a sysctl, nil for none.
func heirOf(name string, others []*otherSink) *otherSink {
	for _, o := range others {
		if o.needs[name] {
			return o
		}
	}
	return nil
}

// inherit notes what a sysctl was before this cluster's addresses and another's were announced.
func (o *otherSink) inherit(name, value string) error {
	if _, known := o.before[name]; known {
		return nil
	}
	o.before[name] = value
	if len(o.before.String()) >= longestAlias { // it stays as it is set
		return nil
	}
	return netlink.LinkSetAlias(o.Link, o.before.String())
}

// needNDP says whether another program has the kernel answer for addresses of IPv6 on an interface
// that does not do so by its own sysctl.
func (s *state) needNDP() bool {
	for e := range s.entries {
		if !e.address.Is6() {
			continue
		}
		l, err := netlink.LinkByIndex(e.link)
		if err != nil {
			continue // it has just gone
		}
		if own, err := readSysctl("/proc/sys/net/ipv6/conf/" + l.Attrs().Name + "/proxy_ndp"); err == nil && own == "0" {
			return true
		}
	}
	return false
}
