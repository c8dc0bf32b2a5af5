package imageapi

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/coracle-project/coracle/image"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/image/layers"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/snapshot"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests mount images: run them as root")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// containers are what a test says that there is.
type containers []pod.Container

func (c *containers) Containers(pod.ContainerFilter) iter.Seq[pod.Container] {
	return slices.Values(*c)
}

// world is a client of a service over real stores.
type world struct {
	imagesv1.ImagesClient
	t          *testing.T
	root       string
	images     *image.Store
	snapshots  *snapshot.Store
	containers containers
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, root: t.TempDir()}
	quiet := slog.New(slog.DiscardHandler)
	w.snapshots = snapshot.New(snapshot.Config{Root: filepath.Join(w.root, "snapshots"), Log: quiet})
	must(t, w.snapshots.Start(t.Context()))
	t.Cleanup(func() {
		for _, s := range w.snapshots.List() {
			must(t, w.snapshots.Remove(context.WithoutCancel(t.Context()), s.ID))
		}
		must(t, w.snapshots.Close())
	})
	var err error
	w.images, err = image.Open(image.Config{
		Root: filepath.Join(w.root, "images"), Layers: layers.New(layers.Config{Node: w.snapshots, Log: quiet}), KeepBlobs: true, Log: quiet,
	})
	must(t, err)
	t.Cleanup(func() { must(t, w.images.Close()) })

	server, listener := grpc.NewServer(), bufconn.Listen(1<<20)
	Register(server, Deps{Images: w.images, Snapshots: w.snapshots, Containers: &w.containers, Root: w.root, State: t.TempDir()})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:test", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(t, err)
	t.Cleanup(func() {
		must(t, conn.Close())
		server.Stop()
		must(t, <-served)
	})
	w.ImagesClient = imagesv1.NewImagesClient(conn)
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rootfs is an archive with one file.
func rootfs(name, content string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))})
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return b.Bytes()
}

// imported makes an image of one file, sent in small pieces.
func (w *world) imported(name, file, content string) *imagesv1.Image {
	w.t.Helper()
	s, err := w.Import(w.t.Context())
	must(w.t, err)
	must(w.t, s.Send(&imagesv1.ImportRequest{Name: name}))
	for data := rootfs(file, content); len(data) > 0; {
		n := min(700, len(data))
		must(w.t, s.Send(&imagesv1.ImportRequest{Data: data[:n]}))
		data = data[n:]
	}
	r, err := s.CloseAndRecv()
	must(w.t, err)
	return r.GetImage()
}

// drained reads a stream of bytes to its end.
func drained(t *testing.T, s interface {
	Recv() (*imagesv1.Chunk, error)
},
) []byte {
	t.Helper()
	var b bytes.Buffer
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return b.Bytes()
		}
		must(t, err)
		b.Write(m.GetData())
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

func TestLifeOfAnImage(t *testing.T) {
	w := newWorld(t)
	made := w.imported("localhost/made:1", "hello", strings.Repeat("hello ", 2000))
	r, err := w.Tag(t.Context(), &imagesv1.TagRequest{Image: made.GetId(), Name: "localhost/more:2"})
	must(t, err)
	if len(r.GetImage().GetTags()) != 2 {
		t.Errorf("tagged %v", r.GetImage())
	}
	i, err := w.Inspect(t.Context(), &imagesv1.InspectRequest{Image: "localhost/more:2"})
	must(t, err)
	if digest.FromBytes(i.GetConfiguration()).String() != made.GetId() || digest.FromBytes(i.GetManifest()).String() != made.GetManifest() {
		t.Errorf("inspected %v", i)
	}

	// Out and in again.
	saved, err := w.Save(t.Context(), &imagesv1.SaveRequest{Images: []string{"localhost/made:1"}})
	must(t, err)
	archive := drained(t, saved)
	exported, err := w.Export(t.Context(), &imagesv1.ExportRequest{Image: "localhost/made:1"})
	must(t, err)
	if !bytes.Contains(drained(t, exported), []byte("hello hello")) {
		t.Error("the export lacks the file")
	}
	gone, err := w.Remove(t.Context(), &imagesv1.RemoveRequest{Image: made.GetId()})
	must(t, err)
	if len(gone.GetUntagged()) != 2 || gone.GetDeleted() != made.GetId() || gone.GetFreed() < 12000 {
		t.Errorf("removed %v", gone)
	}
	in, err := w.Load(t.Context())
	must(t, err)
	must(t, in.Send(&imagesv1.LoadRequest{Data: archive}))
	loaded, err := in.CloseAndRecv()
	must(t, err)
	if len(loaded.GetImages()) != 1 || loaded.GetImages()[0].GetManifest() != made.GetManifest() {
		t.Errorf("loaded %v", loaded)
	}
}

func TestCommit(t *testing.T) {
	w := newWorld(t)
	made := w.imported("localhost/made:1", "hello", "hello")
	id := strings.Repeat("ab", 32)
	target := filepath.Join(t.TempDir(), "rootfs")
	_, err := w.snapshots.Prepare(t.Context(), id,
		snapshot.PrepareOptions{Layers: []digest.Digest{digest.Digest(made.GetLayers()[0].GetDiffId())}, Target: target})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(target, "new"), []byte("new"), 0o644))
	w.containers = containers{{ID: id, ImageID: made.GetId()}, {ID: "abcd", ImageID: made.GetId()}}

	r, err := w.Commit(t.Context(), &imagesv1.CommitRequest{Container: id[:10], Name: "localhost/changed:1", Changes: []string{"USER 7"}})
	must(t, err)
	if len(r.GetImage().GetLayers()) != 2 {
		t.Errorf("committed %v", r.GetImage())
	}
	img, err := w.images.Get("localhost/changed:1")
	if err != nil || img.Config.User != "7" {
		t.Errorf("configuration %+v, %v", img.Config, err)
	}
	_, err = w.Commit(t.Context(), &imagesv1.CommitRequest{Container: "ab", Name: "localhost/x:1"})
	wantCode(t, "two containers", err, codes.InvalidArgument)
	_, err = w.Commit(t.Context(), &imagesv1.CommitRequest{Container: "0", Name: "localhost/x:1"})
	wantCode(t, "no container", err, codes.NotFound)
	_, err = w.Commit(t.Context(), &imagesv1.CommitRequest{Container: "abcd", Name: "localhost/x:1"})
	wantCode(t, "no snapshot", err, codes.NotFound)
	must(t, w.images.Remove(t.Context(), made.GetId()))
	_, err = w.Commit(t.Context(), &imagesv1.CommitRequest{Container: id, Name: "localhost/x:1"})
	wantCode(t, "no image", err, codes.FailedPrecondition)
}

// What a container was made of is not pruned, and what has a tag only if that is asked.
func TestPrune(t *testing.T) {
	w := newWorld(t)
	used, other := w.imported("localhost/used:1", "a", "a"), w.imported("localhost/other:1", "b", "b")
	w.imported("localhost/moving:1", "c", "c")
	w.imported("localhost/moving:1", "d", "d")
	w.containers = containers{{ID: "1", ImageID: used.GetId()}}
	r, err := w.Prune(t.Context(), &imagesv1.PruneRequest{})
	must(t, err)
	if len(r.GetRemoved()) != 1 || len(r.GetRemoved()[0].GetTags()) != 0 || r.GetFreed() == 0 {
		t.Errorf("pruned %v", r)
	}
	r, err = w.Prune(t.Context(), &imagesv1.PruneRequest{All: true})
	must(t, err)
	if len(r.GetRemoved()) != 2 {
		t.Errorf("pruned %v", r)
	}
	if _, err := w.images.Get(other.GetId()); err == nil {
		t.Error("an unused image is left")
	}
	l, err := w.List(t.Context(), &imagesv1.ListRequest{})
	must(t, err)
	if len(l.GetImages()) != 1 || l.GetImages()[0].GetId() != used.GetId() || len(l.GetImages()[0].GetContainers()) != 1 ||
		l.GetImages()[0].GetFrees() == 0 {
		t.Errorf("left %v", l)
	}
}

// Garbage goes with a prune, and what damage has left of images with one of all.
func TestPruneCollects(t *testing.T) {
	w := newWorld(t)
	// lost makes layers that a lease keeps and no image has.
	lost := func(lease, file string) {
		made := w.imported("localhost/lost:1", file, strings.Repeat(file, 10_000))
		must(t, w.images.Lease(t.Context(), lease, time.Hour, digest.Digest(made.GetLayers()[0].GetDiffId())))
		must(t, w.images.Remove(t.Context(), made.GetId()))
	}
	layers := func() int {
		all, err := w.snapshots.Layers()
		must(t, err)
		return len(all)
	}
	lost("a tool's", "a")
	lost("salvage", "b")
	for _, tc := range []struct {
		name  string
		do    func() error
		all   bool
		left  int
		frees bool
	}{
		{"leased", nil, false, 2, false},
		{"a tool has let go", func() error { return w.images.Release(t.Context(), "a tool's") }, false, 1, true},
		{"salvaged", nil, false, 1, false},
		{"salvaged, all", nil, true, 0, true},
		{"nothing", nil, true, 0, false},
	} {
		if tc.do != nil {
			must(t, tc.do())
		}
		r, err := w.Prune(t.Context(), &imagesv1.PruneRequest{All: tc.all})
		must(t, err)
		if layers() != tc.left || len(r.GetRemoved()) != 0 || r.GetFreed() >= 10_000 != tc.frees {
			t.Errorf("%s: %d layers left, pruned %v", tc.name, layers(), r)
		}
	}
}

// What was pulled or tagged since the images were listed is not pruned.
func TestPrunable(t *testing.T) {
	at := time.Unix(1, 0)
	plain := image.Image{Pulled: at}
	tagged := image.Image{Pulled: at, RepoTags: []string{"a:1"}}
	for _, tc := range []struct {
		name      string
		now, seen image.Image
		all, want bool
	}{
		{"no tag", plain, plain, false, true},
		{"a tag", tagged, tagged, false, false},
		{"a tag, all", tagged, tagged, true, true},
		{"just tagged", tagged, plain, false, false},
		{"just tagged, all", tagged, plain, true, false},
		{"just tagged once more, all", image.Image{Pulled: at, RepoTags: []string{"a:1", "b:1"}}, tagged, true, false},
		{"just pulled, all", image.Image{Pulled: at.Add(1), RepoTags: []string{"a:1"}}, tagged, true, false},
		{"just lost its tag", plain, tagged, false, false},
		{"pinned, all", image.Image{Pulled: at, Pinned: true}, plain, true, false},
	} {
		if got := prunable(tc.now, tc.seen, tc.all); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestMountPoints(t *testing.T) {
	w := newWorld(t)
	made := w.imported("localhost/made:1", "hello", "hello")
	other := w.imported("localhost/other:1", "b", "b")
	dir := filepath.Join(t.TempDir(), "mnt")
	mount := func(image, dir string) error {
		_, err := w.Mount(t.Context(), &imagesv1.MountRequest{Image: image, Directory: dir})
		return err
	}
	must(t, mount(made.GetId(), dir))
	must(t, mount(made.GetId(), dir+"/."))
	if data, err := os.ReadFile(filepath.Join(dir, "hello")); err != nil || string(data) != "hello" {
		t.Errorf("hello is %q, %v", data, err)
	}
	wantCode(t, "another image there", mount(other.GetId(), dir), codes.AlreadyExists)
	wantCode(t, "relative", mount(made.GetId(), "mnt"), codes.InvalidArgument)
	wantCode(t, "in use", mount(made.GetId(), w.root), codes.FailedPrecondition)
	wantCode(t, "a file", mount(made.GetId(), "/etc/passwd"), codes.InvalidArgument)
	if ids := layers.Mounts(w.snapshots); len(ids) != 1 {
		t.Errorf("mounts %q", ids)
	}
	_, err := w.Unmount(t.Context(), &imagesv1.UnmountRequest{Directory: dir})
	must(t, err)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	_, err = w.Unmount(t.Context(), &imagesv1.UnmountRequest{Directory: dir})
	wantCode(t, "again", err, codes.NotFound)
}

func TestRequiredFields(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	last := func(s interface {
		Recv() (*imagesv1.Progress, error)
	}, err error,
	) error {
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	_, inspect := w.Inspect(ctx, &imagesv1.InspectRequest{})
	_, tag := w.Tag(ctx, &imagesv1.TagRequest{Image: "x"})
	_, remove := w.Remove(ctx, &imagesv1.RemoveRequest{})
	_, commit := w.Commit(ctx, &imagesv1.CommitRequest{Name: "x"})
	_, mount := w.Mount(ctx, &imagesv1.MountRequest{Directory: "/x"})
	pull := last(w.Pull(ctx, &imagesv1.PullRequest{}))
	push := last(w.Push(ctx, &imagesv1.PushRequest{}))
	save, err := w.Save(ctx, &imagesv1.SaveRequest{})
	must(t, err)
	_, saved := save.Recv()
	odd, err := w.Save(ctx, &imagesv1.SaveRequest{Images: []string{"x"}, Format: 7})
	must(t, err)
	_, format := odd.Recv()
	verify, err := w.Verify(ctx, &imagesv1.VerifyRequest{Repair: 7})
	must(t, err)
	_, repair := verify.Recv()
	load, err := w.Load(ctx)
	must(t, err)
	_, loaded := load.CloseAndRecv()
	noName, err := w.Import(ctx)
	must(t, err)
	must(t, noName.Send(&imagesv1.ImportRequest{Data: []byte("x")}))
	_, name := noName.CloseAndRecv()
	bad, err := w.Import(ctx)
	must(t, err)
	must(t, bad.Send(&imagesv1.ImportRequest{Name: "x", Configuration: []byte("{")}))
	_, config := bad.CloseAndRecv()
	for what, err := range map[string]error{
		"inspect": inspect, "tag": tag, "remove": remove, "commit": commit, "mount": mount, "pull": pull, "push": push, "save": saved,
		"format": format, "repair": repair, "load": loaded, "import": name, "configuration": config,
	} {
		wantCode(t, what, err, codes.InvalidArgument)
	}
}
