package client_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/client"
)

// hangingFS is a file system that can be made to hang, like one on a server that is gone.
type hangingFS struct {
	fuse.RawFileSystem

	mu    sync.Mutex
	gate  chan struct{} // nil while it answers
	stuck chan struct{} // has an element once a call hangs
}

func newHangingFS(t *testing.T) (h *hangingFS, dir string) {
	t.Helper()
	root, err := fs.NewLoopbackRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h = &hangingFS{RawFileSystem: fs.NewNodeFS(root, &fs.Options{})}
	dir = filepath.Join(t.TempDir(), "mount")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := fuse.NewServer(h, dir, &fuse.MountOptions{DirectMount: true})
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve()
	t.Cleanup(func() {
		h.answer()
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	return h, dir
}

// hang makes calls wait for answer; stuck has an element once one does.
func (h *hangingFS) hang() (stuck <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate, h.stuck = make(chan struct{}), make(chan struct{}, 1)
	return h.stuck
}

func (h *hangingFS) answer() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gate != nil {
		close(h.gate)
		h.gate = nil
	}
}

// wait returns when the file system answers.
func (h *hangingFS) wait() {
	h.mu.Lock()
	gate, stuck := h.gate, h.stuck
	h.mu.Unlock()
	if gate == nil {
		return
	}
	select {
	case stuck <- struct{}{}:
	default:
	}
	<-gate
}

func (h *hangingFS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	h.wait()
	return h.RawFileSystem.Lookup(cancel, in, name, out)
}

func (h *hangingFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	h.wait()
	return h.RawFileSystem.GetAttr(cancel, in, out)
}

func (h *hangingFS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	h.wait()
	return h.RawFileSystem.Open(cancel, in, out)
}

func (h *hangingFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	h.wait()
	return h.RawFileSystem.Write(cancel, in, data)
}

func (r *rig) await(stuck <-chan struct{}) {
	r.Helper()
	select {
	case <-stuck:
	case <-r.ctx().Done():
		r.Fatal("nothing hangs")
	}
}

// works runs a container to its end.
func (r *rig) works() {
	r.Helper()
	req := r.request("echo hello; exit 5")
	r.run(req)
	if ev := r.exit(req.ID); ev.ExitCode != 5 {
		r.Errorf("event %+v", ev)
	}
	if got := r.log(req.LogPath, "stdout"); got != "hello\n" {
		r.Errorf("log %q", got)
	}
}

// A log's file system that hangs affects that log only: other containers run, log and end, commands
// run in the log's container, and the next shim adopts all of them.
func TestHungLog(t *testing.T) {
	h, dir := newHangingFS(t)
	r := newRig(t)
	defer h.answer() // before the rig ends
	silent := r.request("exec sleep 1000")
	silent.LogPath = filepath.Join(dir, "silent.log")
	silent.LogLimit = client.LogLimit{FileBytes: api.MinLogBytes, Files: 2} // checked when the shim adopts the container
	r.run(silent)
	stuck := h.hang()
	r.waitNewShim(r.killShim())
	r.await(stuck)
	r.works()
	if out, _, _ := r.exec(silent.ID, "echo hello"); out != "hello\n" {
		t.Errorf("exec: %q", out)
	}
	h.answer()

	loud := r.request("echo started; while ! test -e /tmp/go; do sleep 0.02; done; while :; do echo line; done")
	loud.LogPath = filepath.Join(dir, "loud.log")
	r.run(loud)
	r.waitLog(loud.LogPath, "started\n")
	stuck = h.hang()
	r.exec(loud.ID, "touch /tmp/go")
	r.await(stuck)
	r.works()
	if out, _, _ := r.exec(loud.ID, "echo hello"); out != "hello\n" {
		t.Errorf("exec: %q", out)
	}
	h.answer()
}
