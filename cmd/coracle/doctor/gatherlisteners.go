package doctor

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The range of node ports: the API server's default.
const firstNodePort, lastNodePort = 30000, 32767

// The states of sockets that wait (include/net/tcp_states.h); UDP's are TCP_CLOSE.
const tcpListen, udpUnconnected = "0A", "07"

// readListeners finds what waits on ports of the range of node ports, on addresses that are not
// loopback. proc is where procfs is mounted.
func readListeners(proc string) ([]Listener, error) {
	var all []Listener
	sockets := map[string][]int{} // inode: indices of all
	for _, table := range []struct{ file, protocol, state string }{
		{"tcp", "tcp", tcpListen}, {"tcp6", "tcp", tcpListen}, {"udp", "udp", udpUnconnected}, {"udp6", "udp", udpUnconnected},
	} {
		data, err := os.ReadFile(filepath.Join(proc, "net", table.file))
		if errors.Is(err, fs.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list sockets: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line) // sl local remote st tx:rx tr:when retrnsmt uid timeout inode
			if len(f) < 10 || f[3] != table.state {
				continue
			}
			at, ok := parseSocket(f[1])
			if !ok || at.Addr().IsLoopback() || at.Port() < firstNodePort || at.Port() > lastNodePort {
				continue
			}
			sockets[f[9]] = append(sockets[f[9]], len(all))
			all = append(all, Listener{NodePort: NodePort{table.protocol, at.Port()}, Address: at.Addr().String()})
		}
	}
	if len(all) > 0 {
		nameListeners(proc, sockets, all)
	}
	return all, nil
}

// parseSocket reads an address as procfs has it: 32-bit words in the machine's order, and a port.
func parseSocket(text string) (netip.AddrPort, bool) {
	address, port, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	raw, herr := hex.DecodeString(address)
	if !ok || err != nil || herr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) { // amd64 and arm64 are little-endian
		slices.Reverse(word)
	}
	a, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(a.Unmap(), uint16(number)), ok
}

// nameListeners finds the processes that have sockets open. Those of others are seen by root only.
func nameListeners(proc string, sockets map[string][]int, all []Listener) {
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "[0-9]*"))
	for _, file := range files {
		to, err := os.Readlink(file)
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(strings.TrimSuffix(to, "]"), "socket:[")
		if !ok {
			continue
		}
		for _, i := range sockets[inode] {
			name, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(file)), "comm"))
			if err == nil {
				all[i].Process = strings.TrimSpace(string(name))
			}
		}
	}
}
