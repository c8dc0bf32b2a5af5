//go:build faults

package image

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/coracle-project/coracle/internal/fault"
)

var pullPoints = []string{"image.pull.resolved", "image.pull.layer", "image.pull.synced", "image.pull.indexed"}

func TestPullFailsAtFaultPoints(t *testing.T) {
	for _, point := range pullPoints {
		for _, action := range []string{"error", "hang"} {
			r, s := newFake(t), openStore(t, nil)
			r.image("app:1", threeLayers(), nil)
			t.Setenv("CORACLE_FAULTS", point+"="+action)
			ctx, cancel := context.WithCancel(t.Context())
			if action == "hang" { // until the caller's deadline
				ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
			}
			_, err := s.Pull(ctx, r.ref("app:1"), PullOptions{})
			cancel()
			if !errors.Is(err, fault.ErrInjected) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s=%s: %v", point, action, err)
			}
			want := nothingLeft
			if point == "image.pull.indexed" && len(s.List()) == 1 {
				want = "images 1 blobs 5 layers 3 ingest 0 staging 0" // it was done already
			}
			if got := s.left(t); got != want {
				t.Errorf("%s=%s: %s", point, action, got)
			}
			t.Setenv("CORACLE_FAULTS", "")
			if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); err != nil {
				t.Errorf("%s=%s: the next pull: %v", point, action, err)
			}
		}
	}
}

// A process that is killed at any point leaves a store that opens whole: with the
// image if the index named it, else without a trace of it.
func TestPullKilledAtFaultPoints(t *testing.T) {
	for _, point := range pullPoints {
		r := newFake(t)
		r.image("app:1", threeLayers(), nil)
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperPull$")
		cmd.Env = append(os.Environ(), "HELPER_PULL="+r.ref("app:1"), "HELPER_DIR="+dir, "CORACLE_FAULTS="+point+"=kill")
		err := cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: helper ended with %v", point, err)
		}
		// The layer store empties its staging area itself when it opens.
		must(t, os.RemoveAll(filepath.Join(dir, "layers", "staging")))
		layers := newDirLayers(t, filepath.Join(dir, "layers"))
		s := &testStore{layers: layers, cfg: Config{Root: filepath.Join(dir, "images"), Layers: layers, KeepBlobs: true}}
		s.reopen(t)
		want := nothingLeft
		if point == "image.pull.indexed" {
			want = "images 1 blobs 5 layers 3 ingest 0 staging 0"
		}
		if got := s.left(t); got != want {
			t.Errorf("%s: %s", point, got)
		}
		if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); err != nil {
			t.Errorf("%s: the next pull: %v", point, err)
		}
		must(t, s.Close())
	}
}

// TestHelperPull is the process that is killed.
func TestHelperPull(t *testing.T) {
	ref, dir := os.Getenv("HELPER_PULL"), os.Getenv("HELPER_DIR")
	if ref == "" {
		return
	}
	layers := newDirLayers(t, filepath.Join(dir, "layers"))
	s, err := Open(Config{Root: filepath.Join(dir, "images"), Layers: layers, KeepBlobs: true})
	must(t, err)
	_, err = s.Pull(t.Context(), ref, PullOptions{})
	t.Fatalf("not killed: %v", err)
}
