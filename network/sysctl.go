package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// netSysctls is where settings are. Such a file acts on the network namespace of the
// thread that opens it, which is the host's but where another is said.
const netSysctls = "/proc/sys/net"

func readSysctl(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(netSysctls, name))
	return strings.TrimSpace(string(b)), err
}

// setSysctl writes only what is different: /proc/sys may be read-only and right.
func setSysctl(name, value string) error {
	if now, err := readSysctl(name); err != nil {
		return fmt.Errorf("sysctl net/%s: %w", name, err)
	} else if now == value {
		return nil
	}
	if err := os.WriteFile(filepath.Join(netSysctls, name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl net/%s: %w", name, err)
	}
	return nil
}

// hasIPv6 reports whether the kernel speaks IPv6 and the host lets it.
func (b *builtin) hasIPv6() bool {
	on := false
	err := b.sysctls.Use(func(dir string) error { // asked for each pod
		off, err := os.ReadFile(filepath.Join(dir, "net/ipv6/conf/default/disable_ipv6"))
		on = strings.TrimSpace(string(off)) == "0"
		return err
	})
	return err == nil && on
}

// takeLoopback lets the host's own connections to 127.0.0.1 be sent to a pod with host ports.
// It would also let the pod send to the host's 127.0.0.1 (CVE-2020-8558), which the
// firewall drops.
func takeLoopback(link string) error { return setSysctl("ipv4/conf/"+link+"/route_localnet", "1") }

// keepRouterAdvertisements lets interfaces that learn their IPv6 routes from
// routers go on doing so: with forwarding on, the default 1 means no more, and
// the host would lose its own network (ip-sysctl.rst, accept_ra).
func keepRouterAdvertisements() error {
	interfaces, err := os.ReadDir(filepath.Join(netSysctls, "ipv6/conf"))
	if err != nil {
		return fmt.Errorf("sysctl net/ipv6/conf: %w", err)
	}
	for _, i := range interfaces {
		if i.Name() == "default" { // would hold for the pods' links, too
			continue
		}
		name := filepath.Join("ipv6/conf", i.Name(), "accept_ra")
		if v, err := readSysctl(name); err != nil || v != "1" {
			continue
		}
		if err := setSysctl(name, "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
