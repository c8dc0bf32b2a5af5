package announce

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// record is what sysctls were before, by short names: "ndp" for IPv6's proxy_ndp, "4eth0" and
// "6eth0" for eth0's proxy_delay. It is the sink's alias, such as "4eth0=80 6eth0=80 ndp=0".
type record map[string]string

// longestAlias is the kernel's limit (IFALIASZ), with the null byte.
const longestAlias = 255

const proxyNDP = "ndp"

func parseRecord(alias string) record {
	r := record{}
	for _, text := range strings.Fields(alias) {
		name, value, ok := strings.Cut(text, "=")
		if path, _ := file(name); ok && path != "" {
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

// file is where a sysctl is, and what we set it to.
func file(name string) (path, ours string) {
	const root = "/proc/sys/net/"
	if name == proxyNDP {
		// The one for all interfaces: by that of one interface, the kernel answers no solicitation
		// that is sent to the address itself, with which neighbours check that it is still there.
		return root + "ipv6/conf/all/proxy_ndp", "1"
	}
	if len(name) < 2 || strings.Contains(name, "/") || strings.HasSuffix(name, "..") {
		return "", ""
	}
	switch name[0] {
	case '4':
		return root + "ipv4/neigh/" + name[1:] + "/proxy_delay", "0"
	case '6':
		return root + "ipv6/neigh/" + name[1:] + "/proxy_delay", "0"
	}
	return "", ""
}

// ensureSysctls has the kernel answer on an interface, and at once.
func (s *state) ensureSysctls(l link, ipv6 bool) error {
	names, family := []string{"4" + l.name}, "ipv4"
	if ipv6 {
		names, family = []string{"6" + l.name, proxyNDP}, "ipv6"
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
		if _, known := s.before[name]; !known { // what another program has set since is not ours to bring back
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

// restore sets the sysctls to what they were, unless someone else has set them meanwhile. Those of
// interfaces that have gone need nothing.
func (r record) restore() error {
	var errs []error
	for name, value := range r {
		path, ours := file(name)
		now, err := readSysctl(path)
		if err == nil && now == ours {
			err = os.WriteFile(path, []byte(value), 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("set %s back to %s: %w", path, value, err))
		}
	}
	return errors.Join(errs...)
}
