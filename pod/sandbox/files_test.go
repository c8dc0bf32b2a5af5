package sandbox

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the tests of pod/sandbox mount a pod's shared memory and need root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// written writes the files of a pod that has the address 10.1.2.3, and returns where they are. They
// are unmounted at the end of the test.
func written(t *testing.T, c podconfig.Pod) func(name string) string {
	t.Helper()
	n := podtest.NewNode(t)
	ps := &Pods{Config: Config{Dirs: n.Dirs, SELinux: mac.NewSELinux(podtest.NewLabels())}}
	p := n.Pod(func(r *state.PodRecord) { r.Config = c })
	hostname := podtest.Must[string](t)(c.UTSName())
	podtest.OK(t, ps.writePodFiles(p.ID, &c, hostname))
	t.Cleanup(func() { podtest.OK(t, unix.Unmount(n.Dirs.PodFiles(p.ID), unix.MNT_DETACH)) })
	net := network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3")}}
	podtest.OK(t, ps.finishPodFiles(p.ID, &c, hostname, net, mac.Labels{}))
	return func(name string) string { return n.Dirs.PodFile(p.ID, name) }
}

func read(t *testing.T, path string) string {
	t.Helper()
	return string(podtest.Must[[]byte](t)(os.ReadFile(path)))
}

// What containers can write to is not on the state directory's file system, which
// they would fill up.
func TestPodFilesAreBounded(t *testing.T) {
	for _, ipc := range []podconfig.NamespaceMode{podconfig.NamespacePod, podconfig.NamespaceNode} {
		c := podconfig.Pod{Hostname: "host-p"}
		c.Namespaces.IPC = ipc
		file := written(t, c)
		var fs unix.Statfs_t
		podtest.OK(t, unix.Statfs(file("resolv.conf"), &fs))
		if size := fs.Blocks * uint64(fs.Bsize); fs.Type != unix.TMPFS_MAGIC || size != 64<<20 {
			t.Errorf("ipc %s: the pod's files are on a file system of type %x with %d bytes", ipc, fs.Type, size)
		}
		st, err := os.Stat(file("shm"))
		switch {
		case ipc == podconfig.NamespaceNode && !errors.Is(err, os.ErrNotExist):
			t.Errorf("a pod with the host's shared memory has its own, too: %v", err)
		case ipc == podconfig.NamespacePod && (err != nil || st.Mode() != os.ModeDir|os.ModeSticky|0o777):
			t.Errorf("shared memory: %v, %v", st, err)
		}
	}
}

// Names of hosts are written as they were given.
func TestHostnames(t *testing.T) {
	for _, name := range []string{"web-0.web.default.svc.", "web_0", "-web", "web!", "кит", strings.Repeat("x", 64)} {
		file := written(t, podconfig.Pod{Hostname: name})
		for file, want := range map[string]string{file("hostname"): name + "\n", file("hosts"): "10.1.2.3\t" + name + "\n"} {
			if got := read(t, file); !strings.HasSuffix(got, want) {
				t.Errorf("%s: %s is %q", name, file, got)
			}
		}
	}
}

func TestPodFiles(t *testing.T) {
	c := podconfig.Pod{
		Hostname: "host-p",
		DNS:      podconfig.DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5"}},
	}
	file := written(t, c)
	for name, want := range map[string]string{
		"hostname":    "host-p\n",
		"resolv.conf": "search a.b c\nnameserver 10.0.0.10\noptions ndots:5\n",
		"hosts":       "10.1.2.3\thost-p\n",
	} {
		if got := read(t, file(name)); !strings.Contains(got, want) {
			t.Errorf("%s is %q", name, got)
		}
	}
	ps := &Pods{Config: Config{Dirs: state.Layout(t.TempDir())}}
	if told := ps.networkPod("p", &c).DNS; !reflect.DeepEqual(told, network.DNS(c.DNS)) {
		t.Errorf("the network was told %+v", told)
	}
}

// The name servers are the caller's, else the network's, else the host's.
func TestResolvConf(t *testing.T) {
	host := func() ([]byte, error) { return []byte("nameserver 192.0.2.1\n"), nil }
	own := podconfig.DNS{Servers: []string{"10.0.0.10"}}
	net := network.Result{DNSServers: []string{"10.0.0.1"}, DNSSearches: []string{"net"}, DNSOptions: []string{"edns0"}}
	for name, tc := range map[string]struct {
		dns  podconfig.DNS
		net  network.Result
		want string
	}{
		"the caller's":  {own, net, "nameserver 10.0.0.10\n"},
		"the network's": {podconfig.DNS{}, net, "search net\nnameserver 10.0.0.1\noptions edns0\n"},
		"the host's":    {podconfig.DNS{}, network.Result{}, "nameserver 192.0.2.1\n"},
	} {
		if got, err := resolvConf(tc.dns, tc.net, host); err != nil || string(got) != tc.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
