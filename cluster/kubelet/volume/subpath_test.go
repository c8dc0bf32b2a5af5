package volume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/internal/rmtree"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// withSubPath returns a pod with one emptyDir, mounted with that subPath or subPathExpr.
func withSubPath(subPath, expr string) *v1.Pod {
	pod := podWith(vol("data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = subPath
	pod.Spec.Containers[0].VolumeMounts[0].SubPathExpr = expr
	return pod
}

func TestSubPaths(t *testing.T) {
	const refused = `failed to prepare subPath for volumeMount "data" of container "c"`
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/secret", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, subPath, expr string
		prepare             func(dir string) error
		shows               string // relative to the volume
		fail                string
	}{
		{name: "made", subPath: "a/b", shows: "a/b"},
		{name: "file", subPath: "f", prepare: func(d string) error { return os.WriteFile(d+"/f", nil, 0o600) }, shows: "f"},
		{name: "fifo", subPath: "f", prepare: func(d string) error { return syscall.Mkfifo(d+"/f", 0o600) }, shows: "f"},
		{name: "link inside", subPath: "l/x", prepare: func(d string) error {
			_ = os.Mkdir(d+"/real", 0o700)
			return os.Symlink("real", d+"/l")
		}, shows: "real/x"},
		{name: "expression", expr: "$(POD)/logs", shows: "p/logs"},
		{name: "expression with nothing", expr: "$(NONE)/$(EMPTY)", fail: "missing value for EMPTY, NONE"},
		{name: "absolute", subPath: "/etc", fail: "error SubPath `/etc` must not be an absolute path"},
		{name: "back step", subPath: "a/../..", fail: "unable to provision SubPath `a/../..`: must not contain '..'"},
		{name: "link to the host", subPath: "l", prepare: func(d string) error { return os.Symlink(outside, d+"/l") }, fail: refused},
		{name: "file behind a link to the host", subPath: "l/secret", prepare: func(d string) error {
			return os.Symlink(outside, d+"/l")
		}, fail: refused},
		{name: "nothing behind a link to the host", subPath: "l/new", prepare: func(d string) error {
			return os.Symlink(outside, d+"/l")
		}, fail: refused},
		{name: "dangling link", subPath: "l", prepare: func(d string) error { return os.Symlink("nowhere", d+"/l") }, fail: refused},
		{name: "link up", subPath: "l/x", prepare: func(d string) error { return os.Symlink("..", d+"/l") }, fail: refused},
		{name: "magic link", subPath: "l", prepare: func(d string) error { return os.Symlink("/proc/self/root", d+"/l") }, fail: refused},
		{name: "file on the way", subPath: "f/x", prepare: func(d string) error { return os.WriteFile(d+"/f", nil, 0o600) }, fail: refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			pod := withSubPath(c.subPath, c.expr)
			n.mount(pod)
			dir := n.path(pod, layout.VolumesDir, "kubernetes.io~empty-dir/data")
			if c.prepare != nil {
				if err := c.prepare(dir); err != nil {
					t.Fatal(err)
				}
			}
			envs := []*runtimeapi.KeyValue{{Key: "POD", Value: []byte("p")}, {Key: "EMPTY"}}
			mounts, err := n.Mounts(context.Background(), pod, &pod.Spec.Containers[0], envs)
			if c.fail != "" {
				if err == nil || err.Error() != c.fail {
					t.Errorf("got %v, want %s", err, c.fail)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				want := n.path(pod, layout.SubPathsDir, "data/c/0")
				if mounts[0].HostPath != want || !mountpoint.Is(want) || !sameFile(t, want, filepath.Join(dir, c.shows)) {
					t.Errorf("%s is not %s", mounts[0].HostPath, c.shows)
				}
			}
			// Without the refusal, each link would have led out of the volume.
			if strings.Contains(c.name, "link") && c.fail == refused && !strings.HasPrefix(c.name, "dangling") {
				link, _, _ := strings.Cut(c.subPath, "/")
				if real, err := filepath.EvalSymlinks(filepath.Join(dir, link)); err != nil || strings.HasPrefix(real, dir) {
					t.Errorf("the link leads to %s, %v: this test proves nothing", real, err)
				}
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Error("something was made outside:", entries)
			}
			n.unmount(pod)
		})
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y unix.Stat_t
	if err := unix.Lstat(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := unix.Lstat(b, &y); err != nil {
		t.Fatal(err)
	}
	return x.Dev == y.Dev && x.Ino == y.Ino
}

func TestSubPathFollowsWhatThePathLeadsToNow(t *testing.T) {
	n := newNode(t)
	pod := withSubPath("f", "")
	n.mount(pod)
	file := n.path(pod, layout.VolumesDir, "kubernetes.io~empty-dir/data/f")
	target := n.path(pod, layout.SubPathsDir, "data/c/0")
	for i, make := range []func() error{
		func() error { return os.WriteFile(file, []byte("1"), 0o600) },
		func() error { return nil },
		func() error { _ = os.Remove(file); return os.WriteFile(file, []byte("2"), 0o600) },
		func() error { _ = os.Remove(file); return os.Mkdir(file, 0o700) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Mounts(context.Background(), pod, &pod.Spec.Containers[0], nil); err != nil {
			t.Fatal(err)
		}
		if !sameFile(t, target, file) {
			t.Error("instance", i, "gets what is gone")
		}
	}
	n.restart(n.opts.RootDir)
	n.unmount(pod)
}

// A container that swaps a directory for a link to the host while the path is resolved gets either
// its own directory or an error.
func TestSubPathRace(t *testing.T) {
	n := newNode(t)
	host := t.TempDir()
	pod := withSubPath("a/b", "")
	n.mount(pod)
	dir := n.path(pod, layout.VolumesDir, "kubernetes.io~empty-dir/data")
	if err := os.MkdirAll(dir+"/real/b", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(host, dir+"/evil"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", dir+"/a"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapper sync.WaitGroup
	swapped := 0
	swapper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if unix.Renameat2(unix.AT_FDCWD, dir+"/evil", unix.AT_FDCWD, dir+"/a", unix.RENAME_EXCHANGE) == nil {
					swapped++
				}
			}
		}
	})
	// The attacker wins against a path that is followed.
	late := time.Now().Add(time.Minute)
	for won := false; !won; {
		at, err := filepath.EvalSymlinks(dir + "/a")
		won = err == nil && at == host
		if time.Now().After(late) {
			t.Fatal("a path that is followed never leads to the host: this test proves nothing")
		}
	}
	bound := 0
	for i := 0; i < 500 || bound == 0 && time.Now().Before(late); i++ { // the swapper may not run for as long
		mounts, err := n.Mounts(context.Background(), pod, &pod.Spec.Containers[0], nil)
		if err != nil {
			continue
		}
		bound++
		if !sameFile(t, mounts[0].HostPath, dir+"/real/b") {
			t.Fatal("the container has got something that is not its own")
		}
	}
	close(stop)
	swapper.Wait()
	if swapped == 0 || bound == 0 {
		t.Errorf("swapped %d times, bound %d: want both", swapped, bound)
	}
	if entries, _ := os.ReadDir(host); len(entries) > 0 {
		t.Error("the host has got", entries)
	}
	n.unmount(pod)
}

func TestMountsOfAContainer(t *testing.T) {
	n := newNode(t, configMap("cm", "1", nil))
	pod := podWith(vol("cm", fromConfigMap("cm", false)), vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv"}}),
		vol("img", v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "reg/x:1"}}))
	vms := pod.Spec.Containers[0].VolumeMounts
	vms[1].MountPropagation, vms[1].MountPath = ptr.To(v1.MountPropagationBidirectional), "relative"
	vms[2].SubPath = "etc"
	n.mount(pod)
	mounts, err := n.Mounts(context.Background(), pod, &pod.Spec.Containers[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if m := mounts[0]; !m.Readonly || m.ContainerPath != "/cm" || m.HostPath != n.path(pod, layout.VolumesDir, "kubernetes.io~configmap/cm") {
		t.Error(m)
	}
	if m := mounts[1]; m.Readonly || m.ContainerPath != "/relative" || m.HostPath != "/srv" ||
		m.Propagation != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL || m.SelinuxRelabel {
		t.Error(m)
	}
	if m := mounts[2]; m.HostPath != "" || m.Image.GetImage() != "reg/x:1" || m.ImageSubPath != "etc" {
		t.Error(m)
	}
	for _, c := range []struct {
		change func(*v1.VolumeMount)
		want   string
	}{
		{func(vm *v1.VolumeMount) { vm.Name = "zz" }, `cannot find volume "zz" to mount into container "c"`},
		{func(vm *v1.VolumeMount) { vm.MountPropagation = ptr.To(v1.MountPropagationMode("Odd")) }, `invalid MountPropagation mode: "Odd"`},
		{func(vm *v1.VolumeMount) {
			vm.RecursiveReadOnly = ptr.To(v1.RecursiveReadOnlyEnabled)
		}, `failed to resolve recursive read-only mode: volume "cm" requested recursive read-only mode, but it is not read-only`},
		{func(vm *v1.VolumeMount) {
			vm.ReadOnly, vm.RecursiveReadOnly = true, ptr.To(v1.RecursiveReadOnlyEnabled)
		}, `failed to resolve recursive read-only mode: volume "cm" requested recursive read-only mode, but it is not supported by the runtime`},
	} {
		container := pod.Spec.Containers[0].DeepCopy()
		c.change(&container.VolumeMounts[0])
		if _, err := n.Mounts(context.Background(), pod, container, nil); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	n.unmount(pod)
}

func TestUnmountOfHostileVolumes(t *testing.T) {
	n := newNode(t)
	host := t.TempDir()
	if err := os.WriteFile(host+"/keep", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := podWith(vol("data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	n.mount(pod)
	dir := n.path(pod, layout.VolumesDir, "kubernetes.io~empty-dir/data")
	deep, err := unix.Open(dir, layout.OpenDir, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * rmtree.MaxDepth {
		if err := unix.Mkdirat(deep, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(deep, "d", layout.OpenDir, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(deep)
		deep = next
	}
	unix.Close(deep)
	for _, err := range []error{
		os.Symlink(host, dir+"/link"), os.Mkdir(dir+"/m", 0o700), os.WriteFile(dir+"/f", nil, 0o600), os.Mkdir(dir+"/locked", 0),
		// What a container with bidirectional propagation leaves on the host.
		unix.Mount(host, dir+"/m", "", unix.MS_BIND, ""), unix.Mount(host, dir+"/m", "", unix.MS_BIND, ""),
		unix.Mount(host+"/keep", dir+"/f", "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// What follows mounts when it deletes would delete that.
	if !sameFile(t, dir+"/m/keep", host+"/keep") || !sameFile(t, dir+"/f", host+"/keep") {
		t.Error("the volume does not show what is the host's: this test proves nothing")
	}
	n.restart(n.opts.RootDir)
	n.unmount(pod)
	if _, err := os.Stat(host + "/keep"); err != nil {
		t.Error("what belongs to the host was removed:", err)
	}
}
