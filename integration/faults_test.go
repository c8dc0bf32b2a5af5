package integration

import (
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// The shim kills itself, or fails once, at each fault point that it passes with containers of other
// runtimes. The other points are in crashmatrix.
func TestShimKilledAtEachFaultPoint(t *testing.T) {
	for _, tc := range []struct{ prefix, handler string }{
		{"runtime.oci.", "oci:" + runc},
		{"runtime.shim.", "shim:" + testkit.Bin(t, "tools", "containerd-shim-runc-v2")},
	} {
		t.Run(tc.prefix, func(t *testing.T) {
			faults := testkit.NewFaults(t)
			n := newHandlerNode(t, testkit.Options{Faults: true, Env: faults.Env()}, tc.handler)
			n.pull("busybox")
			n.warm()
			for _, point := range testkit.FaultPointsOf(t, testkit.ShimExe, tc.prefix) {
				for _, action := range []string{"kill", "error"} {
					for _, pid := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
						t.Run(point+"/"+action+"/"+strings.ToLower(pid.String()), func(t *testing.T) {
							n.t = t
							faultAt(t, n, faults, point, action, pid)
						})
					}
				}
			}
		})
	}
}

// faultAt takes a pod through its life, and makes one fault happen to the shim meanwhile.
func faultAt(t *testing.T, n *node, faults *testkit.Faults, point, action string, pid cri.NamespaceMode) {
	check := n.noLeaks()
	var before []int
	eventually(t, "there is one shim", func() bool { // a child of it is one, too, until it executes its program
		before = n.Shims()
		return len(before) == 1
	})
	gone, err := testkit.WatchExit(before[0])
	if err != nil {
		t.Fatal(err)
	}
	faults.Arm(point, action)
	done := make(chan struct{})
	go func() {
		defer close(done)
		retryLifeWith(t, n, pid)
	}()
	// The point may be reached after the end of the calls: some of their work is done in the
	// background.
	eventually(t, "the fault point is reached", faults.Taken)
	if action == "kill" {
		select {
		case <-gone:
		case <-time.After(callTimeout):
			t.Fatal("the shim was not killed")
		}
	}
	select {
	case <-done:
	case <-time.After(2 * callTimeout):
		t.Fatal("hangs")
	}
	n.ready()
	check()
}
