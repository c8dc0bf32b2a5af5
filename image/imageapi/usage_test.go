package imageapi

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/snapshot"
)

// What is said to be used adds up to what du(1) finds.
func TestUsageIsComplete(t *testing.T) {
	w := newWorld(t)
	made := w.imported("localhost/made:1", "hello", strings.Repeat("x", 50_000))
	w.imported("localhost/other:1", "b", "b")
	target := filepath.Join(t.TempDir(), "rootfs")
	_, err := w.snapshots.Prepare(t.Context(), "cafe",
		snapshot.PrepareOptions{Layers: []digest.Digest{digest.Digest(made.GetLayers()[0].GetDiffId())}, Target: target})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(target, "new"), make([]byte, 100_000), 0o644))
	must(t, os.Link(filepath.Join(target, "new"), filepath.Join(target, "twice")))
	must(t, os.Symlink("/", filepath.Join(target, "link")))
	must(t, os.MkdirAll(filepath.Join(w.root, "kube", "etcd"), 0o755))
	must(t, os.WriteFile(filepath.Join(w.root, "kube", "etcd", "db"), make([]byte, 10_000), 0o644))
	ofHandler := filepath.Join(w.root, "snapshotters", "erofs", "snapshots", "beef")
	must(t, os.MkdirAll(ofHandler, 0o755))
	must(t, os.WriteFile(filepath.Join(ofHandler, "new"), make([]byte, 10_000), 0o644))
	f, err := os.Open(w.root)
	must(t, err)
	must(t, errors.Join(unix.Syncfs(int(f.Fd())), f.Close())) // blocks are allocated late
	w.containers = containers{
		{ID: "cafe", Config: podconfig.Container{Name: "main"}},
		{ID: "beef", Config: podconfig.Container{Name: "virtual"}},
	}

	r, err := w.Usage(t.Context(), &imagesv1.UsageRequest{})
	must(t, err)
	var bytes int64
	seen := map[string]string{}
	for _, o := range r.GetOwners() {
		bytes += o.GetBytes()
		seen[o.GetKind()] += strings.Join(o.GetOwners(), ",") + ";"
	}
	out, err := exec.Command("du", "-sx", "--block-size=1", w.root).Output()
	must(t, err)
	if want, _ := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64); bytes != want {
		t.Errorf("%d bytes in all, du says %d: %v", bytes, want, r)
	}
	for _, want := range []struct{ kind, owner string }{
		{"layer", "localhost/made:1;"},
		{"blob", "localhost/other:1;"},
		{"writable layer", "container main;"},
		{"writable layer", "container virtual;"},
		{"other", ";"},
	} {
		if !strings.Contains(seen[want.kind], want.owner) {
			t.Errorf("%s of %q, want %q among them", want.kind, seen[want.kind], want.owner)
		}
	}
}
