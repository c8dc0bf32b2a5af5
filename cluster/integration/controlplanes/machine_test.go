//go:build ha

// Package controlplanes uses a cluster of three control-plane nodes and one without, each a network
// and mount namespace of this machine with its own coracled, and kills them.
package controlplanes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

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
	name, ip, dir string
	holder        int // the process that holds its namespaces
}

func newMachine(t *testing.T, name, ip string) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "n-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{name: name, ip: ip, dir: dir}
	settings := fmt.Sprintf("[network]\ncni_conf_dir = %q\n", filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *machine) root() string { return filepath.Join(m.dir, "root") }

// run runs coracle on the machine, and returns what it said on stdout and stderr.
func (m *machine) run(args ...string) (string, string, error) {
	args = append([]string{
		"--target", strconv.Itoa(m.holder), "--net", "--mount", "--",
		bin("coracle"), "--root", m.root(), "--state", filepath.Join(m.dir, "state"),
	}, args...)
	cmd := exec.Command("nsenter", args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	return out.String(), said.String(), err
}

func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, said, err := m.run(args...)
	if err != nil {
		t.Fatalf("%s: coracle %s: %v\n%s%s\n%s", m.name, args[0], err, out, said, m.logs())
	}
	t.Logf("%s: coracle %s\n%s", m.name, args[0], out)
	return out
}

// refused expects one line of error with some words, and no other.
func (m *machine) refused(t *testing.T, want string, args ...string) {
	t.Helper()
	out, said, err := m.run(args...)
	said = strings.TrimSpace(said)
	if err == nil || !strings.Contains(said, want) || strings.Contains(said, "\n") {
		t.Errorf("%s: coracle %s: %v\n%s%s\nwant one line with %q", m.name, strings.Join(args, " "), err, out, said, want)
	}
}

func (m *machine) logs() string {
	var all strings.Builder
	for _, name := range []string{"kube.log", "coracled.log"} {
		data, err := os.ReadFile(filepath.Join(m.root(), "logs", name))
		if err == nil {
			fmt.Fprintf(&all, "--- %s of %s\n%s\n", name, m.name, data[max(0, len(data)-6000):])
		}
	}
	return all.String()
}

// flags are those of up and join that keep nodes of one machine apart.
func (m *machine) flags() []string {
	return []string{
		"--config", "", "--node-name", m.name, "--node-ip", m.ip, "--runtime-config", filepath.Join(m.dir, "coracled.toml"),
		"--cgroup-root", fmt.Sprintf("/coracle-nodes-%s-%s", filepath.Base(m.dir), m.name),
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

// invitation is what `coracle token create -o json` says.
type invitation struct {
	Token, Server, CAHash, Join string
}

func invite(t *testing.T, m *machine, args ...string) invitation {
	t.Helper()
	var i invitation
	out, said, err := m.run(append([]string{"token", "create", "-o", "json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		t.Fatalf("token create: %v\n%s%s", err, out, said)
	}
	return i
}
