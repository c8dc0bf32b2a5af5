package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/forwarded"
)

// onMachine says that this process has network and mount namespaces of its own. Otherwise it runs
// the test again in one that has.
func onMachine(t *testing.T) bool {
	t.Helper()
	const inside = "CORACLE_TEST_MACHINE"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, said)
	}
	return false
}

// A down ends joins that an up is at, or that a killed up has left. Regression: it detached the
// namespaces of a node whose join waited for the cluster, which then started the node in
// namespaces that no command reached.
func TestDownEndsJoins(t *testing.T) {
	if !onMachine(t) {
		return
	}
	coracle := withDoubles(t)
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	for _, made := range []string{p.root, p.state} {
		if err := os.Mkdir(made, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	o := upOptions{Node: "one", Port: 6443, Further: 1, NodeCIDRs: []string{"10.84.0.0/24"}, PodLogs: filepath.Join(dir, "pods")}
	remember(t, p, o)
	w := p.nodeNetwork(o)
	t.Cleanup(func() { _ = w.Remove() })
	if err := w.Make(2, p.root, p.state); err != nil {
		t.Fatal(err)
	}
	// join looks whether there is a shim, and an API server.
	if err := os.Link(coracle, filepath.Join(filepath.Dir(coracle), "containerd-shim-coracle-v1")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "10.84.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.Server{Listener: listener, Config: &http.Server{Handler: http.NotFoundHandler()}}
	server.StartTLS()
	defer server.Close()
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	two := p.of(2, "one-2")
	if err := os.MkdirAll(two.root, 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, two, upOptions{Coracled: true, Boot: boot}) // of a join that was taken back while its coracled went on
	fifo := filepath.Join(dir, "asks")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	asks, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	join := exec.Command(coracle, "--root", p.root, "--state", p.state, "--node", "one-2",
		"join", server.URL, "--token", "a.b", "--ca-hash", "sha256:00",
		"--config", "", "--node-name", "one-2", "--timeout", "5m")
	join.Env = append(os.Environ(), startedFIFO+"="+fifo)
	join.Stdout, join.Stderr = t.Output(), t.Output()
	if err := join.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- join.Wait(); _, _ = asks.Write([]byte("e")) }()
	said := make([]byte, 1)
	if _, err := asks.Read(said); err != nil || said[0] != 0 {
		t.Fatalf("join did not come to ask the cluster: %q, %v", said, err)
	}
	if o := remembered(two); o.Server != server.URL || !o.Coracled || o.Boot != boot {
		t.Errorf("while it joins, the node remembers %+v: down would leave the coracled that runs", o)
	}
	down := exec.Command(coracle, "--root", p.root, "--state", p.state, "down", "--purge")
	if said, err := down.CombinedOutput(); err != nil {
		t.Errorf("down: %v\n%s", err, said)
	}
	if err := join.Process.Signal(unix.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("the join still runs: %v", err)
		_ = join.Process.Kill()
	}
	<-ended
	for _, gone := range []string{p.root, p.state} {
		if left, err := os.ReadDir(gone); err == nil {
			t.Errorf("%s has %v", gone, left)
		}
	}
	if w.Exists() {
		t.Error("the nodes' network is left")
	}
}

// Regression: after leave on a further node, status said that its programs do not run, and failed.
func TestStatusOfANodeThatHasLeft(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.nodesRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Node: "boat", Port: 6443, Further: 2})
	if err := os.WriteFile(p.joinedFile(2), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := map[string][]health{}
	for _, h := range look(t.Context(), p) {
		lines[h.Node] = append(lines[h.Node], h)
	}
	if left := lines["boat-2"]; len(left) != 1 || !left[0].Healthy || !strings.Contains(left[0].Message, "it has left the cluster; 'coracle up --root") {
		t.Errorf("the node that has left: %+v", left)
	}
	if never := lines["boat-3"]; len(never) < 2 || never[0].Healthy {
		t.Errorf("the node that has not joined: %+v", never)
	}
}

// Further nodes have the cluster's flags that are about nodes. Regression: they loaded images from
// the default directory.
func TestFlagsOfFurtherNodes(t *testing.T) {
	o := upOptions{
		Node: "one", Images: "/srv/images", EvictionHard: "memory.available<1Mi", KubeletPort: 10350, CgroupRoot: "/c",
		BGPAS: "64512", BGPPeers: []string{"10.0.0.254 as=64500", "fd00::fe as=64500"},
	}
	flags := o.ofNode(place{root: "/r"}.of(2, "one-2"), 2, time.Minute)
	for flag, want := range map[string]string{
		"--images": "/srv/images", "--eviction-hard": "memory.available<1Mi", "--kubelet-port": "10350", "--cgroup-root": "/c-2",
		"--pod-log-dir": "/r/nodes/2/logs/pods", "--node-name": "one-2", "--timeout": "1m0s",
		"--bgp-as": "64512", "--bgp-peer": "10.0.0.254 as=64500,fd00::fe as=64500",
	} {
		if got := flagOf(flags, flag); got != want {
			t.Errorf("%s is %q, want %q", flag, got, want)
		}
	}
	for _, flag := range agentFlags {
		if !slices.Contains(flags, "--"+flag) {
			t.Errorf("further nodes are not told --%s", flag)
		}
	}
}

// The network of the nodes' addresses is none of the pods'. Regression: the default networks of
// pods were not looked at.
func TestNetworksOfNodesAndPods(t *testing.T) {
	alone(t, func() {
		for text, want := range map[string]string{
			"10.85.7.0/24": "overlaps 10.85.0.0/16", "fd85:c0ac:1e00:7::/64": "overlaps fd85:c0ac:1e00::/48", "10.96.3.0/24": "overlaps 10.96.0.0/",
			"10.86.0.0/24": "",
		} {
			o := upOptions{Port: 6443, Bind: "127.0.0.1", ServiceCIDR: defaultServices, Further: 1, NodeCIDRs: []string{text}}
			u := &upRun{o: &o}
			err := u.checkNodeNetworks(u.nodeNetwork(o))
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("--nodes-cidr %s: %v, want %q", text, err, want)
			}
		}
	})
}

// joinedNodes is an up of a cluster with further nodes that have joined. The script is executed
// instead of the commands on them; $6 is the name of the node.
func joinedNodes(t *testing.T, further furtherNodes, script string) *upRun {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(asCoracle, program)
	p := place{root: t.TempDir(), state: t.TempDir()}
	limit, stop := withTimeLimit(t.Context(), time.Minute)
	t.Cleanup(stop)
	u := &upRun{place: p, o: &upOptions{Node: "one", Port: 6443, Further: further}, limit: limit}
	for i, of := range p.further(*u.o) {
		if err := os.MkdirAll(of.root, 0o700); err != nil {
			t.Fatal(err)
		}
		remember(t, of, upOptions{Node: of.node, Server: "https://10.84.0.1:6443"})
		if err := os.WriteFile(p.joinedFile(i+2), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// A further node that fails does not end the starts of the others. Regression: they got SIGTERM.
func TestOneNodeThatFails(t *testing.T) {
	wait := filepath.Join(t.TempDir(), "wait")
	if err := unix.Mkfifo(wait, 0o600); err != nil {
		t.Fatal(err)
	}
	opened, err := os.OpenFile(wait, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	// Four start at once. The last one starts when the first has failed, and lets the others go on.
	u := joinedNodes(t, 5, `case $6 in
one-2) echo "coracle: no luck" >&2; exit 1;;
one-6) printf "\n\n\n" > `+wait+`;;
*) read line < `+wait+`;;
esac`)
	var out strings.Builder
	err = u.upNodes(t.Context(), nil, newSteps(&out))
	if err == nil || err.Error() != "node one-2: no luck" {
		t.Errorf("the error is %v", err)
	}
	for n := 3; n <= 6; n++ {
		if !strings.Contains(out.String(), "node "+u.o.nodeName(n)+" is Ready") {
			t.Errorf("node %d is not Ready:\n%s", n, out.String())
		}
	}
}

// A node that is one too many is not deleted while it has volumes. Regression: volumes of CSI
// drivers were not looked at, and what to do was refused while the cluster ran.
func TestSurplusNodeWithVolumes(t *testing.T) {
	for name, c := range map[string]struct {
		path func(p place) string
		want string
	}{
		"a claim's": {func(p place) string { return filepath.Join(p.volumesDir(), "pvc-1") }, "1 volume"},
		"a CSI driver's": {
			func(p place) string {
				return filepath.Join(p.kubelet(), "pods", "uid", "volumes", "kubernetes.io~csi", "pv")
			},
			"volumes of CSI drivers are still on this node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := joinedNodes(t, 1, "exit 1")
			u.o.Further = 0
			if err := os.MkdirAll(c.path(u.of(2, "one-2")), 0o700); err != nil {
				t.Fatal(err)
			}
			if name != "a claim's" {
				record := filepath.Join(c.path(u.of(2, "one-2")), csiRecord)
				if err := os.WriteFile(record, []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := u.removeSurplus(t.Context(), nil, newSteps(t.Output()))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "'coracle down") {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if _, err := os.Stat(u.of(2, "one-2").root); err != nil {
				t.Error(err)
			}
		})
	}
}

// Regression: when almost no time was left, the error was about --timeout 0s, which no one had
// given.
func TestNodeWithoutTimeLeft(t *testing.T) {
	u := joinedNodes(t, 1, "echo coracle: it was started >&2; exit 1")
	limit, stop := withTimeLimit(t.Context(), 0)
	defer stop()
	u.limit = limit
	if err := u.upNode(t.Context(), nil, 2, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}

// With another --node-name, further nodes join by their new names. Regression: their up refused the
// name.
func TestNodesAreRenamed(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	u := joinedNodes(t, 1, `echo "$6 $7" >> `+asked)
	u.o.Node = "two"
	var deleted []string
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		deleted = append(deleted, r.Method+" "+r.URL.Path)
	}))
	defer s.Close()
	invited := func() (newToken, error) { return newToken{Server: "https://10.84.0.1:6443"}, nil }
	if err := u.upNode(t.Context(), &api{server: s.URL, http: s.Client()}, 2, invited); err != nil {
		t.Error(err)
	}
	if want := []string{"DELETE /api/v1/nodes/one-2"}; !slices.Equal(deleted, want) {
		t.Errorf("the API server got %v, want %v", deleted, want)
	}
	if said, err := os.ReadFile(asked); err != nil || string(said) != "two-2 join\n" {
		t.Errorf("on the node there were %q, %v, want a join", said, err)
	}
	claim := filepath.Join(u.of(2, "two-2").volumesDir(), "pvc-1")
	if err := os.MkdirAll(claim, 0o700); err != nil {
		t.Fatal(err)
	}
	remember(t, u.of(2, "two-2"), upOptions{Node: "two-2", Server: "https://10.84.0.1:6443"})
	u.o.Node = "three"
	if err := u.upNode(t.Context(), nil, 2, invited); err == nil || !strings.Contains(err.Error(), "1 volume of claims") {
		t.Errorf("a node with volumes: %v", err)
	}
	if _, err := os.Stat(claim); err != nil {
		t.Error(err)
	}
}

// If up turns forwarding on, coracled is told: it keeps this machine's networks apart then, also
// those that come later. Regression: coracled took it for the operator's choice.
// What a node's up takes to load images does not count for --timeout, as on the first node.
func TestNodesLoadImagesWithoutHurry(t *testing.T) {
	u := joinedNodes(t, 1, `exec sleep 0.2`)
	u.o.Images = t.TempDir()
	if err := os.WriteFile(filepath.Join(u.o.Images, "all.tar"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	limit, stop := withTimeLimit(t.Context(), 100*time.Millisecond)
	defer stop()
	u.limit = limit
	var out strings.Builder
	if err := u.upNodes(limit, nil, newSteps(&out)); err != nil {
		t.Error(err)
	}
}

func TestForwardingIsRecorded(t *testing.T) {
	if !onMachine(t) {
		return
	}
	for i, c := range []struct{ before, want string }{{"1", ""}, {"0", "4"}, {"1", "4"}} { // the last is another up after the second
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(c.before), 0o600); err != nil {
			t.Fatal(err)
		}
		p := place{root: t.TempDir(), state: t.TempDir()}
		o := upOptions{Node: "one", Port: 6443, Bind: "127.0.0.1", ServiceCIDR: defaultServices, Further: 1, NodeCIDRs: []string{"10.84.0.0/24"}}
		u := &upRun{place: p, o: &o}
		t.Cleanup(func() { _ = u.nodeNetwork(o).Remove() })
		if err := u.makeNodes(); err != nil {
			t.Fatal(err)
		}
		if got, err := forwarded.Read(filepath.Join(p.state, "network")); err != nil || got != c.want {
			t.Errorf("%d: with forwarding %s before, up records %q, %v, want %q", i, c.before, got, err, c.want)
		}
		if err := u.nodeNetwork(o).Remove(); err != nil {
			t.Error(err)
		}
	}
}
