//go:build ha

// Package controlplanes uses a cluster of three control-plane nodes and one without, each a network
// and mount namespace of this machine with its own coracled, and kills them.
package controlplanes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/coracle-project/coracle/cluster/integration/coraclecmd"
	"github.com/coracle-project/coracle/cluster/integration/isolate"
)

// patience bounds what a test waits for, on however slow a machine.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { os.Exit(isolate.Run(m.Run)) }

// bin is the path of a file in the directory of what is built.
func bin(name string) string {
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "bin")
	}
	return must(filepath.Abs(filepath.Join(dir, name)))
}

// machine is where one node runs.
type machine struct {
	coraclecmd.Node
	ip, dir string
	holder  int // the process that holds its namespaces
}

func newMachine(t *testing.T, name, ip string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "n-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{ip: ip, dir: dir}
	m.Node = coraclecmd.Node{Name: name, Root: filepath.Join(dir, "root"), Argv: m.argv}
	settings := fmt.Sprintf("[network]\ncni_conf_dir = %q\n", filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// argv is coracle in the machine's namespaces.
func (m *machine) argv() []string {
	return []string{
		"nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--",
		bin("coracle"), "--root", m.Root, "--state", filepath.Join(m.dir, "state"),
	}
}

// flags are those of up and join that keep nodes of one machine apart.
func (m *machine) flags() []string {
	return []string{
		"--config", "", "--node-name", m.Name, "--node-ip", m.ip, "--runtime-config", filepath.Join(m.dir, "coracled.toml"),
		"--cgroup-root", fmt.Sprintf("/coracle-nodes-%s-%s", filepath.Base(m.dir), m.Name),
		"--pod-log-dir", filepath.Join(m.dir, "pods"), "--timeout", patience.String(), "--eviction-hard", "memory.available<0%",
	}
}

// network calls f with the machine's network.
func (m *machine) network(t *testing.T, f func(*netlink.Handle) error) {
	t.Helper()
	ns, err := netns.GetFromPid(m.holder)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err == nil {
		defer h.Close()
		err = f(h)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// furnish sets the links of a network up.
func furnish(h *netlink.Handle, ip string) error {
	for name, address := range map[string]string{"lo": "", "lan0": ip + "/24"} {
		l, err := h.LinkByName(name)
		if err == nil && address != "" {
			err = h.AddrAdd(l, &netlink.Addr{IPNet: must(netlink.ParseIPNet(address))})
		}
		if err == nil {
			err = h.LinkSetUp(l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
