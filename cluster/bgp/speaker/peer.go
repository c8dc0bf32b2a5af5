package speaker

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Peer is a router that routes are announced to.
type Peer struct {
	Address netip.Addr
	AS      uint32
	Port    uint16
	// PasswordFile has the password of the connection (TCP MD5, RFC 2385), "" for none.
	PasswordFile string
	password     string
}

const (
	defaultPort = 179
	// longestPassword is the kernel's limit (TCP_MD5SIG_MAXKEYLEN).
	longestPassword = 80
	example         = "10.0.0.254 as=64500 port=179 password-file=/etc/coracle/bgp-password"
)

// ParsePeer reads a peer such as "10.0.0.254 as=64500 port=179 password-file=/etc/bgp-password", of
// which only address and AS are needed.
func ParsePeer(text string) (Peer, error) {
	fail := func(why string) (Peer, error) {
		return Peer{}, fmt.Errorf("peer %q: %s, as in %q", text, why, example)
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return fail("no address")
	}
	p := Peer{Port: defaultPort}
	var err error
	if p.Address, err = netip.ParseAddr(words[0]); err != nil || p.Address.IsUnspecified() || p.Address.IsMulticast() || p.Address.Is4In6() {
		return fail(fmt.Sprintf("%q is no address of a router", words[0]))
	}
	if p.Address.IsLinkLocalUnicast() && p.Address.Is6() && p.Address.Zone() == "" {
		return fail(words[0] + " needs its interface, such as " + words[0] + "%eth0")
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if seen[name] {
			return fail("duplicate " + name)
		}
		seen[name] = true
		switch name {
		case "as":
			if p.AS, err = ParseAS(value); err != nil {
				return fail(err.Error())
			}
		case "port":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil || port == 0 {
				return fail(fmt.Sprintf("%q is no port", value))
			}
			p.Port = uint16(port)
		case "password-file":
			if !filepath.IsAbs(value) {
				return fail(fmt.Sprintf("%q is no absolute path", value))
			}
			p.PasswordFile = value
		default:
			return fail(fmt.Sprintf("unknown %q", word))
		}
	}
	if p.AS == 0 {
		return fail("as is missing")
	}
	return p, nil
}

// ParseAS reads the number of an autonomous system.
func ParseAS(text string) (uint32, error) {
	const asTrans = 23456 // RFC 6793: for speakers that know small numbers only
	as, err := strconv.ParseUint(text, 10, 32)
	if err != nil || as == 0 || as == asTrans || as == 1<<32-1 || as == 1<<16-1 {
		return 0, fmt.Errorf("%q is no number of an AS", text)
	}
	return uint32(as), nil
}

// Peers reads peers and their passwords.
func Peers(texts []string) (all []Peer, err error) {
	seen := map[netip.Addr]bool{}
	for _, text := range texts {
		p, err := ParsePeer(text)
		if err != nil {
			return nil, err
		}
		if seen[p.Address] {
			return nil, fmt.Errorf("peer %s: there are two of them", p.Address)
		}
		seen[p.Address] = true
		if p.PasswordFile != "" {
			if p.password, err = readPassword(p.PasswordFile); err != nil {
				return nil, fmt.Errorf("peer %s: password-file %w", p.Address, err)
			}
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil, errors.New("no peer is named")
	}
	return all, nil
}

// readPassword reads the first line of a file that only its owner may read.
func readPassword(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would have to be written to
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s belongs to another user: chown %d %[1]s", path, os.Geteuid())
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s may be read by others: chmod 600 %[1]s", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, 2*longestPassword))
	if err != nil {
		return "", err
	}
	password := strings.TrimRight(string(data), "\r\n")
	if password == "" || len(password) > longestPassword || strings.ContainsAny(password, "\r\n\x00") {
		return "", fmt.Errorf("%s has no password: one line of at most %d bytes", path, longestPassword)
	}
	return password, nil
}
