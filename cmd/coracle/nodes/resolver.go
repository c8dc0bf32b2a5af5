package nodes

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A further node has its own loopback, where no name server listens. If this machine's resolv.conf
// names servers on loopback only, as systemd-resolved's does, the node's is the file with the
// servers that resolved asks itself.
const (
	resolvConf = "/etc/resolv.conf"
	resolved   = "/run/systemd/resolve/resolv.conf"
	// longestResolvConf is how much of such a file is read.
	longestResolvConf = 1 << 20
)

// Unreachable returns the name servers of this machine if further nodes reach none of them.
func Unreachable() []netip.Addr {
	if all := servers(resolvConf); onLoopback(all) && !elsewhere(servers(resolved)) {
		return all
	}
	return nil
}

// onLoopback says whether there are servers, and all on loopback. elsewhere says whether there is
// another one.
func onLoopback(all []netip.Addr) bool { return len(all) > 0 && !elsewhere(all) }

func elsewhere(all []netip.Addr) bool {
	return slices.ContainsFunc(all, func(a netip.Addr) bool { return !a.IsLoopback() })
}

// servers returns the name servers in a resolv.conf(5).
func servers(path string) (all []netip.Addr) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, longestResolvConf))
	if err != nil {
		return nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// useResolved has this mount namespace use the file of systemd-resolved if there are no other name
// servers. What is mounted is a symbolic link, because resolved replaces the file. dir is where the
// link is made.
func useResolved(dir string) error {
	if !onLoopback(servers(resolvConf)) || !elsewhere(servers(resolved)) {
		return nil
	}
	link := filepath.Join(dir, "resolv.conf")
	if err := os.Symlink(resolved, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, link, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open %s: %w", link, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, resolvConf, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s on %s: %w", link, resolvConf, err)
	}
	return nil
}
