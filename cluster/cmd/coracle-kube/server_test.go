package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ownNetwork says whether the test runs in a process with a network namespace of its own, where
// nothing but the test listens. If not, it has run the test in one. All threads are in that
// namespace.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	const env = "CORACLE_TEST_ALONE"
	if os.Getenv(env) == t.Name() {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), env+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// A server that is started by mistake, with the port of one that runs, leaves the rules of that
// one.
func TestASecondServerRemovesNothing(t *testing.T) {
	const port = "16443"
	if !ownNetwork(t) {
		return
	}
	if out, err := exec.Command("ip", "link", "add", "coracle-lb"+port, "type", "veth", "peer", "name", "far").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	left := func() (names []string) {
		tables, err := c.ListTables()
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range tables {
			names = append(names, table.Name)
		}
		if _, err := net.InterfaceByName("coracle-lb" + port); err == nil {
			names = append(names, "the sink")
		}
		slices.Sort(names)
		return names
	}
	for _, name := range []string{"coracle-policy-" + port, "coracle-services-" + port} {
		c.AddTable(&nftables.Table{Name: name, Family: nftables.TableFamilyINet})
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	first, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	before := left()
	if len(before) != 3 {
		t.Fatalf("there are %q", before)
	}
	dir := t.TempDir()
	_, err = try(t, "server", "--root", dir, "--state", filepath.Join(dir, "run"), "--bind-address", "127.0.0.1", "--port", port,
		"--node-name", "n", "--node-ip", "127.0.0.1", "--network-policies=false", "--service-proxy=false", "--cri", "unix://"+dir+"/none.sock")
	if err == nil || !strings.Contains(err.Error(), "something listens on 127.0.0.1:"+port) {
		t.Errorf("the second server says %v", err)
	}
	if after := left(); !slices.Equal(after, before) {
		t.Errorf("left are %q of %q", after, before)
	}
	// Regression: nothing listens at the other address, so the second server took the first one's
	// rules.
	release, err := claimPort(16443, discard)
	if err != nil {
		t.Fatal(err)
	}
	before = left()
	for _, flags := range [][]string{{"--check"}, nil} {
		args := []string{
			"server", "--root", dir, "--state", filepath.Join(dir, "run"), "--bind-address", "127.0.0.2", "--port", port,
			"--node-name", "n", "--node-ip", "127.0.0.1", "--network-policies=false", "--service-proxy=false", "--cri", "unix://" + dir +
				"/none.sock",
		}
		_, err = try(t, append(args, flags...)...)
		if err == nil || !strings.Contains(err.Error(), "another cluster of this machine has port "+port) {
			t.Errorf("the second server at another address with %q says %v", flags, err)
		}
	}
	if after := left(); !slices.Equal(after, before) {
		t.Errorf("left are %q of %q", after, before)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
