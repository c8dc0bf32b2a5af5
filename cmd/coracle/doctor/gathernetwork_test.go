package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracled/config"
)

// inNamespace runs f on a thread with a network namespace of its own, which ends with it.
func inNamespace(t *testing.T, f func(run func(stdin string, command ...string))) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make a network namespace: %v", err)
			return
		}
		f(func(stdin string, command ...string) {
			cmd := exec.Command(command[0], command[1:]...)
			cmd.Stdin = strings.NewReader(stdin)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %v: %s", command, err, out)
			}
		})
	}()
	<-done
}

// Node ports are read from the maps of the service proxy, as cluster/proxy/rules writes them.
func TestReadNodePorts(t *testing.T) {
	inNamespace(t, func(run func(string, ...string)) {
		run(`table inet coracle-services-6443 {
			map nodeport4 { typeof meta l4proto . th dport : meta mark; elements = { tcp . 30080 : 0x1000, udp . 30053 : 0x2000 }; }
			map nodeport6 { typeof meta l4proto . th dport : meta mark; elements = { tcp . 30080 : 0x1000 }; }
		}`, "nft", "-f", "-")
		_, ports, err := readNFTables(firewalled{})
		slices.SortFunc(ports, func(a, b NodePort) int { return strings.Compare(a.Protocol, b.Protocol) })
		if want := []NodePort{{"tcp", 30080}, {"udp", 30053}}; err != nil || !slices.Equal(ports, want) {
			t.Errorf("%+v, %v, want %+v", ports, err, want)
		}
	})
}

func TestReadLinks(t *testing.T) {
	inNamespace(t, func(run func(string, ...string)) {
		link := func(name string, mtu int, address string) {
			run("", "ip", "link", "add", name, "mtu", fmt.Sprint(mtu), "type", "veth", "peer", "name", name+"p")
			run("", "ip", "address", "add", address, "dev", name)
			run("", "ip", "link", "set", name, "up")
		}
		link("up0", 1450, "192.0.2.1/24")
		link("up1", 1500, "198.51.100.1/24")
		run("", "ip", "route", "add", "default", "via", "198.51.100.2", "metric", "200")
		run("", "ip", "route", "add", "default", "via", "192.0.2.2", "metric", "100")
		run("", "ip", "link", "add", "cor0123456789ab", "mtu", "1400", "type", "veth", "peer", "name", "peer0")
		run("", "ip", "link", "add", "cordon", "type", "veth", "peer", "name", "peer1")
		uplink, pods, err := readLinks(true)
		if err != nil || uplink != (Link{"up0", 1450}) || !slices.Equal(pods, []Link{{"cor0123456789ab", 1400}}) {
			t.Errorf("%+v, %+v, %v", uplink, pods, err)
		}
		// Of CNI's plugins, links are known by their other ends, which are in other namespaces.
		if _, pods, err := readLinks(false); err != nil || len(pods) != 0 {
			t.Errorf("%+v, %v", pods, err)
		}
		n := readNetwork(t.Context(), &config.Network{Subnets: []string{"10.85.0.0/16"}}, true)
		if n.Uplink.Name != "up0" || len(n.Firewalls) != 0 || n.Err != "" || !slices.Equal(n.Subnets, []string{"10.85.0.0/16"}) {
			t.Errorf("%+v", n)
		}
	})
}

func TestReadListeners(t *testing.T) {
	proc := t.TempDir()
	write(t, filepath.Join(proc, "net", "tcp"), `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:7580 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 101 1 0000000000000000 100 0 0 10 0
   1: 0100007F:7581 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 102 1 0000000000000000 100 0 0 10 0
   2: 0A02000A:7582 0A02000B:D431 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0000000000000000 100 0 0 10 0
   3: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 104 1 0000000000000000 100 0 0 10 0
   4: broken
`, 0o600)
	write(t, filepath.Join(proc, "net", "udp6"), `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: B80D0120000000000000000001000000:7583 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 105 2 0000000000000000 0
`, 0o600)
	write(t, filepath.Join(proc, "77", "comm"), "nginx\n", 0o600)
	fds := filepath.Join(proc, "77", "fd")
	if err := os.MkdirAll(fds, 0o700); err != nil {
		t.Fatal(err)
	}
	for number, to := range map[string]string{"0": "/dev/null", "3": "socket:[101]", "4": "socket:[999]"} {
		if err := os.Symlink(to, filepath.Join(fds, number)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readListeners(proc)
	want := []Listener{
		{NodePort{"tcp", 30080}, "0.0.0.0", "nginx"},
		{NodePort{"udp", 30083}, "2001:db8::1", ""},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if all, err := readListeners("/proc"); err != nil {
		t.Errorf("%+v, %v", all, err)
	}
}
