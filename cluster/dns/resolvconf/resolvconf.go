// Package resolvconf finds and reads the node's resolver configuration (resolv.conf(5)).
package resolvconf

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
)

const (
	standard = "/etc/resolv.conf"
	// resolved is where systemd-resolved lists the servers that it asks itself.
	resolved = "/run/systemd/resolve/resolv.conf"
	// maxSize is how much of a file is read. It is upstream's limit for pods' files, too.
	maxSize = 10 << 20
	// maxServers bounds how many servers are used; glibc uses three.
	maxServers = 8
)

// Path returns the node's resolver configuration. Where systemd-resolved runs, /etc/resolv.conf
// names only its stub on loopback, which no pod reaches: then it is the file with resolved's own
// servers, as upstream recommends.
func Path() string { return path(standard, resolved) }

func path(standard, resolved string) string {
	servers, err := Servers(standard)
	if err != nil || len(servers) == 0 {
		return standard
	}
	for _, s := range servers {
		if !s.Addr().IsLoopback() {
			return standard
		}
	}
	if behind, err := Servers(resolved); err != nil || len(behind) == 0 {
		return standard
	}
	return resolved
}

// Servers returns the name servers that a file names, with port 53. Lines that name none, or not by
// an address, are skipped, as libc does.
func Servers(path string) ([]netip.AddrPort, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read name servers: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize))
	if err != nil {
		return nil, fmt.Errorf("read name servers of %s: %w", path, err)
	}
	return parse(data), nil
}

func parse(data []byte) (servers []netip.AddrPort) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() && len(servers) < maxServers {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr.Unmap(), 53))
		}
	}
	return servers
}
