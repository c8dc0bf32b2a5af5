package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// faultPoint matches a named fault point in the source.
var faultPoint = regexp.MustCompile(`fault\.At\([^,]+, "([a-z.]+)"\)`)

// faultPoints are all fault points of the packages that coracled is made of. What is
// added there is tested here without further ado.
func faultPoints(t *testing.T) []string {
	return pointsIn(t, "pod", "image", "network", "snapshot", "internal/nspin")
}

// shimFaultPoints are those of the shim.
func shimFaultPoints(t *testing.T) []string { return pointsIn(t, "shim", "runtime") }

func pointsIn(t *testing.T, dirs ...string) []string {
	t.Helper()
	var points []string
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join("..", dir), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(p)
			for _, m := range faultPoint.FindAllStringSubmatch(string(raw), -1) {
				// CNI has its tests in network/: here the built-in bridge is in use.
				if !strings.HasPrefix(m[1], "network.cni.") {
					points = append(points, m[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(points)
	points = slices.Compact(points)
	if len(points) < 4 {
		t.Fatalf("only %d fault points found in %q: %q", len(points), dirs, points)
	}
	return points
}

// wholeLife pulls an image, takes a pod through its life and removes the image, each
// call repeated until it succeeds.
func wholeLife(t *testing.T, n *node) {
	again(t, n, "PullImage", func() error {
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}})
		return err
	})
	retryLife(t, n)
	again(t, n, "RemoveImage", func() error {
		_, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}})
		return err
	})
}

// coracled kills itself at each fault point in turn. Started again it rolls forward
// or back; a client that repeats its calls gets through; nothing is left.
func TestKilledAtEachFaultPoint(t *testing.T) {
	for _, point := range faultPoints(t) {
		t.Run(point, func(t *testing.T) {
			n := newNode(t, testkit.Options{Faults: true, NoSupervise: true})
			n.warm()
			check := n.noLeaks()
			if err := n.Terminate(); err != nil {
				t.Fatal(err)
			}
			if err := n.StartWith("CORACLE_FAULTS=" + point + "=1*kill"); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				wholeLife(t, n)
			}()
			select {
			case <-n.Exited():
				if err := n.Start(); err != nil {
					t.Fatal(err)
				}
			case <-done:
				t.Errorf("the fault point was not reached")
			}
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("hangs")
			}
			check()
		})
	}
}

// Each fault point fails once: the call fails or copes, the next try succeeds, and
// nothing is left.
func TestErrorAtEachFaultPoint(t *testing.T) {
	for _, point := range faultPoints(t) {
		t.Run(point, func(t *testing.T) {
			n := newNode(t, testkit.Options{Faults: true})
			n.warm()
			check := n.noLeaks()
			if err := n.Terminate(); err != nil {
				t.Fatal(err)
			}
			if err := n.StartWith("CORACLE_FAULTS=" + point + "=1*error"); err != nil {
				t.Fatal(err)
			}
			wholeLife(t, n)
			check()
		})
	}
}

// The shim kills itself at each of its fault points. What it makes first is a container,
// or the init of a pod whose containers share the PID namespace.
func TestShimKilledAtEachFaultPoint(t *testing.T) {
	for _, point := range shimFaultPoints(t) {
		t.Run(point, func(t *testing.T) { shimKilledAt(t, point, cri.NamespaceMode_CONTAINER) })
		if strings.Contains(point, ".create.") {
			t.Run("init/"+point, func(t *testing.T) { shimKilledAt(t, point, cri.NamespaceMode_POD) })
		}
	}
}

func shimKilledAt(t *testing.T, point string, pid cri.NamespaceMode) {
	armed := filepath.Join(t.TempDir(), "faults")
	n := newNode(t, testkit.Options{Faults: true, Env: []string{"CORACLE_FAULTS_FILE=" + armed}})
	n.pull("busybox")
	n.warm()
	check := n.noLeaks()
	before := n.Shims()
	if len(before) != 1 {
		t.Fatalf("shims %v", before)
	}
	gone, err := testkit.WatchExit(before[0])
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, armed, point+"=kill")
	done := make(chan struct{})
	go func() {
		defer close(done)
		retryLifeWith(t, n, pid)
	}()
	select {
	case <-gone:
		// The next shim has to live.
		if err := os.Remove(armed); err != nil {
			t.Error(err)
		}
	case <-done:
		t.Errorf("the fault point was not reached")
	}
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("hangs")
	}
	n.ready()
	check()
}
