package integration

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	imagesv1 "github.com/coracle-project/coracle/api/images/v1"
	"github.com/coracle-project/coracle/internal/testkit"
)

// faultPoints are all fault points that are linked into coracled. What is added there is tested
// here without further ado.
func faultPoints(t *testing.T) []string { return pointsOf(t, "coracled") }

// shimFaultPoints are those of the shim.
func shimFaultPoints(t *testing.T) []string { return pointsOf(t, "containerd-shim-coracle-v1") }

// pointsOf asks a program for its fault points.
func pointsOf(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.Command(testkit.Bin(t, "faults", program))
	cmd.Env = []string{"CORACLE_FAULTS=list"}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("fault points of %s: %v", program, err)
	}
	points := slices.DeleteFunc(strings.Fields(string(out)), func(p string) bool {
		// CNI has its tests in network/: here the built-in bridge is in use.
		// Layers that are pulled lazily have theirs in lazy_test.go. Where the kernel kills
		// cgroups, nothing is frozen for that: see TestKillAtEachStep in shim/client, as for
		// execs that are killed.
		return p == "shim.exec.killed" || strings.HasPrefix(p, "network.cni.") || strings.HasPrefix(p, "image.lazy.") || strings.HasPrefix(p, "runtime.kill.")
	})
	if len(points) < 4 {
		t.Fatalf("only %d fault points in %s: %q", len(points), program, points)
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
	madeHere(t, n)
}

// madeHere imports an image, has it found damaged and dropped, imports it again, gives it a
// second name and removes it, each call repeated until it succeeds.
func madeHere(t *testing.T, n *node) {
	conn, err := grpc.NewClient("unix://"+n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	images := imagesv1.NewImagesClient(conn)
	const name = "localhost/made:"
	var diffID string
	load := func() error {
		s, err := images.Import(n.ctx())
		if err != nil {
			return err
		}
		// The end of the call, not Send, tells what was wrong.
		_ = s.Send(&imagesv1.ImportRequest{Name: name + "1", Data: oneFile()})
		r, err := s.CloseAndRecv()
		if err == nil {
			diffID = r.GetImage().GetLayers()[0].GetDiffId()
		}
		return err
	}
	again(t, n, "Import", load)
	file := filepath.Join(n.Root, "snapshots", "layers", "sha256", strings.TrimPrefix(diffID, "sha256:"), "fs", "file")
	if err := os.WriteFile(file, []byte("damaged"), 0o644); err != nil {
		t.Error(err)
	}
	again(t, n, "Verify", func() error {
		s, err := images.Verify(n.ctx(), &imagesv1.VerifyRequest{Repair: imagesv1.Repair_REPAIR_DROP})
		for err == nil {
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	again(t, n, "Import", load)
	again(t, n, "Tag", func() error {
		_, err := images.Tag(n.ctx(), &imagesv1.TagRequest{Image: name + "1", Name: name + "2"})
		return err
	})
	again(t, n, "Prune", func() error {
		_, err := images.Prune(n.ctx(), &imagesv1.PruneRequest{All: true})
		return err
	})
}

// oneFile is an archive of a root file system.
func oneFile() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Size: 4, Mode: 0o644})
	_, _ = w.Write([]byte("good"))
	_ = w.Close()
	return b.Bytes()
}

// reached waits for the end of a process, which may come after that of the calls: some of their
// work is done behind their back.
func reached(gone, done <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	case <-done:
	}
	select {
	case <-gone:
		return true
	case <-time.After(callTimeout):
		return false
	}
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
			if !reached(n.Exited(), done) {
				t.Fatal("the fault point was not reached")
			}
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
			case <-time.After(2 * callTimeout):
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
	o := testkit.Options{Faults: true, Env: []string{"CORACLE_FAULTS_FILE=" + armed}}
	var n *node
	if strings.HasPrefix(point, "runtime.oci.") {
		n = newHandlerNode(t, o, "oci:"+runc)
	} else if strings.HasPrefix(point, "runtime.shim.") {
		n = newHandlerNode(t, o, "shim:"+testkit.Bin(t, "tools", "containerd-shim-runc-v2"))
	} else {
		n = newNode(t, o)
	}
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
	if !reached(gone, done) {
		t.Fatal("the fault point was not reached")
	}
	// The next shim has to live.
	if err := os.Remove(armed); err != nil {
		t.Error(err)
	}
	select {
	case <-done:
	case <-time.After(2 * callTimeout):
		t.Fatal("hangs")
	}
	n.ready()
	check()
}
