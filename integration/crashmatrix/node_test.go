package crashmatrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/integration/exitcodes"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/leak"
)

// Limits for waits. They are much longer than expected, because the machine may be busy, or
// emulated: there CRIU alone takes 5 s for a container, and 16 s beside other work.
const (
	callLimit    = time.Minute      // for one call
	throughLimit = 2 * time.Minute  // until a repeated call gets through
	settleLimit  = 20 * time.Second // until nothing is left
)

// node is a daemon that serves many cells, and its clients.
type node struct {
	*testkit.Daemon
	*testkit.CRI
	made      imagesv1.ImagesClient
	faults    *testkit.Faults
	t         testing.TB
	seq       int
	before    *leak.Snapshot // of a node that has run all operations once
	cni       string         // where the plugins keep addresses
	codesKept bool           // by the kernel
}

// Both file systems are small, so that tests can fill them. Logs have a limit, so that their
// rotation can be interrupted.
const (
	rootSize  = "400m"
	stateSize = "48m"
	logConfig = "[runtime]\nlog_file_bytes = 262144\nlog_files = 100\n"
)

// newNode starts a daemon with fault points, on the built-in network or on CNI plugins.
func newNode(t *testing.T, kind nodeKind) *node {
	t.Helper()
	faults := testkit.NewFaults(t)
	o := testkit.Options{
		Registries: []string{registry.Addr}, Faults: true, Env: faults.Env(),
		RootSize: rootSize, StateSize: stateSize, Config: logConfig,
	}
	cni := t.TempDir()
	if kind == onCNI {
		o.CNIConfDir = t.TempDir()
		conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "matrix", "plugins": [{"type": "bridge", "bridge": "matrix0",
			"isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}]]}}]}`, cni)
		if err := os.WriteFile(filepath.Join(o.CNIConfDir, "10.conflist"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := testkit.StartDaemon(t, o)
	if kind == onCNI {
		t.Cleanup(func() { // the plugin does not remove it
			if l, err := netlink.LinkByName("matrix0"); err == nil {
				_ = netlink.LinkDel(l)
			}
		})
	}
	conn, err := grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), testkit.Quickly)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &node{Daemon: d, CRI: d.CRI(t), made: imagesv1.NewImagesClient(conn), faults: faults, t: t, cni: cni, codesKept: exitcodes.Kept(t)}
}

func testRef(name string) string { return registry.Addr + "/test/" + name + ":1" }

// call makes one call.
func call[Req, Res any](f func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req) (Res, error) {
	ctx, cancel := callContext()
	defer cancel()
	return f(ctx, req)
}

// callContext is the context of one call.
func callContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), callLimit)
}

// through repeats a call until it succeeds, as the kubelet does.
func through(what string, f func() error) error {
	err := await(throughLimit, 20*time.Millisecond, f)
	if err != nil {
		return fmt.Errorf("%s does not get through within %s: %w", what, throughLimit, err)
	}
	return nil
}

// await repeats f until it succeeds, or fails for good.
func await(limit, every time.Duration, f func() error) error {
	end := time.Now().Add(limit)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := f()
		var gone lostError
		if err == nil || errors.As(err, &gone) {
			return err
		}
		if <-tick.C; time.Now().After(end) {
			return err
		}
	}
}

// until is await for a condition, for as long as things take to settle.
func until(what string, f func() bool) error { return within(settleLimit, what, f) }

// within is await for a condition.
func within(limit time.Duration, what string, f func() bool) error {
	return await(limit, 5*time.Millisecond, func() error {
		if f() {
			return nil
		}
		return errors.New("not within " + limit.String() + ": " + what)
	})
}

// pull makes sure that an image is on the node.
func (n *node) pull(ref string) error {
	return through("PullImage", func() error {
		_, err := call(n.Images.PullImage, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
		return err
	})
}

// hasImage reports whether an image has the name.
func (n *node) hasImage(ref string) (bool, error) {
	r, err := call(n.Images.ImageStatus, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	return r.GetImage() != nil, err
}

// removeImage removes an image if it exists.
func (n *node) removeImage(ref string) error {
	return through("RemoveImage", func() error {
		_, err := call(n.Images.RemoveImage, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
		return err
	})
}

// ready waits until coracled serves, and a shim and a keeper run.
func (n *node) ready() error {
	return errors.Join(
		until("coracled, shim and keeper are back", func() bool {
			return n.PID() != 0 && len(n.Shims()) > 0 && len(n.Keepers()) == 1
		}),
		through("Version", func() error {
			_, err := call(n.Version, &cri.VersionRequest{})
			return err
		}))
}

// freshShim replaces a shim that an earlier keeper has started, if the kernel is old: nobody would
// learn how its containers end after the death of this shim alone, and a cell's fault would count
// for two.
func (n *node) freshShim() error {
	if n.codesKept {
		return nil
	}
	fresh := func() (bool, error) {
		keeper, kerr := n.keeper()
		shims, serr := n.shims()
		if err := errors.Join(kerr, serr); err != nil {
			return false, err
		}
		parent, err := parentOf(shims[0])
		return parent == keeper[0], err
	}
	if is, err := fresh(); err != nil || is {
		return err
	}
	n.t.Log("the shim is of an earlier keeper, and is replaced")
	shims, err := n.shims()
	if err != nil {
		return err
	}
	if err := testkit.Kill(shims[0]); err != nil {
		return err
	}
	return errors.Join(n.ready(), until("the keeper has started the shim", func() bool {
		is, err := fresh()
		return err == nil && is
	}))
}

// parentOf is a process's parent (proc_pid_stat(5): the second field behind the name).
func parentOf(pid int) (parent int, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var state string
	_, err = fmt.Sscan(string(raw[bytes.LastIndexByte(raw, ')')+1:]), &state, &parent)
	return parent, err
}

// begin removes everything that is left of a cell, including the processes, and starts coracled
// again.
func (n *node) begin() error {
	if err := n.Purge(); err != nil {
		return err
	}
	if err := n.Start(); err != nil {
		return err
	}
	return n.takeBaseline()
}

// takeBaseline declares the current state to be free of leaks. Everything that is opened only once
// is open then.
func (n *node) takeBaseline() error {
	w, err := n.newWorkload(nil, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(n.pull(testRef("busybox")), w.upTo(running)); err != nil {
		return err
	}
	for name, ask := range n.overviews() {
		ctx, cancel := callContext()
		if err := ask(ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		cancel()
	}
	if err := w.end(); err != nil {
		return err
	}
	n.quiet()
	// Logs grow with each request for good reasons. The number of adopted programs differs between
	// keepers, and a restarted shim may not yet have looked at a cgroup.
	ignore := func(line string) bool {
		return strings.Contains(line, n.Logs) || n.IsCgroupParent(line) || line == testkit.KeeperPidfds || line == testkit.ShimCgroupRoot
	}
	n.before, err = leak.Take(leak.Scope{
		Dirs: []string{n.Root, n.State, n.cni}, Cgroups: []string{n.Cgroup}, PIDs: n.Processes, Ignore: ignore,
	})
	return err
}

// mostLines is how many leftovers are reported.
const mostLines = 20

// lostLines returns one line for each leftover.
func lostLines(left []string) error {
	if more := len(left) - mostLines; more > 0 {
		left = append(left[:mostLines:mostLines], fmt.Sprint("and ", more, " more"))
	}
	return errors.New("left behind: " + strings.Join(left, "\nleft behind: "))
}

// leaks waits until nothing is left.
func (n *node) leaks(limit time.Duration) error {
	return await(limit, 20*time.Millisecond, func() error {
		left, err := n.before.Left()
		if err == nil && len(left) > 0 {
			err = lostLines(left)
		}
		return err
	})
}
