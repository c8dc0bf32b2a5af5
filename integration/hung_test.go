package integration

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// hangingDir is a file system whose server answers nothing but that it is there, as one on the
// network does whose server is gone. asked is sent a value for each request; release fails all of
// them, and those to come.
func hangingDir(t *testing.T) (dir string, asked <-chan struct{}, release func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := unix.Mount("hangs", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", fd)); err != nil {
		t.Fatal(err)
	}
	// Before the mount it cannot be waited for.
	dev := os.NewFile(uintptr(fd), "/dev/fuse")
	requests, ended := make(chan struct{}, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			request := make([]byte, 1<<17)
			n, err := dev.Read(request)
			if err != nil {
				return // aborted
			}
			const headerSize, opInit = 40, 26
			if n < headerSize {
				continue
			}
			if binary.NativeEndian.Uint32(request[4:]) == opInit {
				_, _ = dev.Write(initReply(binary.NativeEndian.Uint64(request[8:])))
				continue
			}
			requests <- struct{}{}
		}
	}()
	release = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	t.Cleanup(release)
	return dir, requests, release
}

// initReply is the answer to FUSE_INIT, protocol 7.31, with nothing wished for.
func initReply(unique uint64) []byte {
	b := make([]byte, 16+64)
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint64(b[8:], unique)
	binary.NativeEndian.PutUint32(b[16:], 7)
	binary.NativeEndian.PutUint32(b[20:], 31)
	binary.NativeEndian.PutUint32(b[36:], 1<<16) // the longest write
	return b
}

// A volume whose file system hangs is the trouble of the container that wants it: no one else
// waits, neither other pods nor other containers of its pod nor any list; the call can be given up,
// and when the file system is gone or back, all goes on, with nothing left.
func TestHungMount(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	n.warm()
	n.pull("busybox")
	takeALook(t, n) // what is opened once for all is no leak
	check := n.noLeaks()
	victim := n.runPod(nil)
	dir, asked, release := hangingDir(t)
	conf := shell("hangs", forever)
	conf.Mounts = []*cri.Mount{{HostPath: filepath.Join(dir, "volume"), ContainerPath: "/volume"}}
	request := &cri.CreateContainerRequest{PodSandboxId: victim.id, Config: conf, SandboxConfig: victim.config}
	ctx, giveUp := context.WithCancel(n.ctx())
	ended := make(chan error, 1)
	go func() {
		_, err := n.CreateContainer(ctx, request)
		ended <- err
	}()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatalf("the volume was not looked at: %v", err)
	}
	other := victim.run(shell("other", forever))
	if out, _ := other.exec("echo", "fine"); out != "fine\n" {
		t.Errorf("exec in the same pod: %q", out)
	}
	takeALook(t, n)

	// The client has no more patience, and tries again: there are not two of them.
	giveUp()
	if err := <-ended; err == nil {
		t.Error("created on a file system that hangs")
	}
	takeALook(t, n)
	go func() {
		_, err := n.CreateContainer(n.ctx(), request)
		ended <- err
	}()
	takeALook(t, n)
	// The pod can be stopped all the same: it has its address and its host ports back.
	began := time.Now()
	victim.stop()
	if took := time.Since(began); took > callTimeout/2 {
		t.Errorf("the pod was stopped after %v", took)
	}
	if out, err := n.PodSandboxStatus(n.ctx(), &cri.PodSandboxStatusRequest{PodSandboxId: victim.id}); err != nil ||
		out.GetStatus().GetState() != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the stopped pod is %v, %v", out, err)
	}
	release()
	if err := <-ended; err == nil {
		t.Error("created on a file system that was aborted")
	}
	victim.remove()
	check()
}

// takeALook has a pod go through its life, and asks for all that can be listed.
func takeALook(t *testing.T, n *node) {
	t.Helper()
	p := n.runPod(nil)
	c := p.run(shell("main", forever))
	if out, _ := c.exec("echo", "fine"); out != "fine\n" {
		t.Errorf("exec: %q", out)
	}
	for name, call := range n.overviews() {
		if err := call(n.ctx()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.remove()
}
