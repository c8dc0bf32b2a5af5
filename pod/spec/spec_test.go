package spec

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Mounts: a host path is made if missing, links are followed, and a propagation that
// the host does not support is refused.
func TestResolveMounts(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.Symlink("target", filepath.Join(dir, "link")))
	ok(t, os.Mkdir(filepath.Join(dir, "target"), 0o755))
	builder := &Builder{SELinux: mac.NewSELinux(nil)}
	got, err := builder.resolveMounts([]podconfig.Mount{
		{ContainerPath: "/a/", HostPath: filepath.Join(dir, "link")},
		{ContainerPath: "/b", HostPath: filepath.Join(dir, "new/dir"), Readonly: true},
	}, nil, mac.VolumeLabel{})
	ok(t, err)
	if got[0].Source != filepath.Join(dir, "target") || got[0].Destination != "/a" || got[0].Propagation != "rprivate" || !got[1].Readonly {
		t.Errorf("got %+v", got)
	}
	if st, err := os.Stat(filepath.Join(dir, "new/dir")); err != nil || !st.IsDir() {
		t.Errorf("host path not made: %v", err)
	}

	vol := filepath.Join(dir, "vol")
	ok(t, os.Mkdir(vol, 0o755))
	ok(t, unix.Mount("vol", vol, "tmpfs", 0, ""))
	t.Cleanup(func() { ok(t, unix.Unmount(vol, unix.MNT_DETACH)) })
	mount := []podconfig.Mount{{ContainerPath: "/v", HostPath: filepath.Join(vol, "sub"), Propagation: podconfig.PropagationBidirectional}}
	ok(t, unix.Mount("", vol, "", unix.MS_PRIVATE, ""))
	if _, err := builder.resolveMounts(mount, nil, mac.VolumeLabel{}); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("on a private mount: %v", err)
	}
	ok(t, unix.Mount("", vol, "", unix.MS_SHARED, ""))
	if got, err := builder.resolveMounts(mount, nil, mac.VolumeLabel{}); err != nil || got[0].Propagation != "rshared" {
		t.Errorf("on a shared mount: %+v, %v", got, err)
	}
}

func TestResolveDevices(t *testing.T) {
	got, err := resolveDevices([]podconfig.Device{{HostPath: "/dev/null", ContainerPath: "/dev/nothing", Permissions: "r"}}, false)
	ok(t, err)
	if n := got[0].Node; len(got) != 1 || n.Path != "/dev/nothing" || n.Major != 1 || n.Minor != 3 || n.Type != "c" ||
		got[0].Permissions != "r" {
		t.Errorf("got %+v", got)
	}
	all, err := resolveDevices(nil, true)
	ok(t, err)
	paths := map[string]bool{}
	for _, d := range all {
		paths[d.Node.Path] = true
	}
	if !paths["/dev/null"] || paths["/dev/ptmx"] || paths["/dev/console"] {
		t.Errorf("host devices: %v", paths)
	}
}
