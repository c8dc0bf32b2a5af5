package pod

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// someUsers maps 65536 ids.
func someUsers(container, host uint32) podconfig.IDMaps {
	maps := []podconfig.IDMap{{Container: container, Host: host, Length: 1 << 16}}
	return podconfig.IDMaps{UIDs: maps, GIDs: slices.Clone(maps)}
}

// The user namespace of a pod reaches its files, specifications, snapshots and the next daemon.
func TestUserNamespace(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	ctx := t.Context()
	cfg := podConfig("p")
	cfg.Namespaces.User, cfg.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 100000)
	podID := must[string](t)(m.Run(ctx, cfg))
	for _, name := range []string{"hosts", "resolv.conf", "hostname", "shm"} {
		var st unix.Stat_t
		ok(t, unix.Stat(m.dirs.PodFile(podID, name), &st))
		if st.Uid != 100000 || st.Gid != 100000 {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
	}
	c := containerConfig("run")
	c.Security.Namespaces.PID = podconfig.NamespacePod
	c.Mounts = []podconfig.Mount{{ContainerPath: "/image", Image: "busybox"}}
	id := must[string](t)(m.Create(ctx, podID, c))
	spec := b.bundle(id)
	user := specs.LinuxNamespace{Type: specs.UserNamespace, Path: filepath.Join(m.dirs.NamespacesOf(podID), "user")}
	if !slices.Contains(spec.Linux.Namespaces, user) {
		t.Errorf("namespaces %+v", spec.Linux.Namespaces)
	}
	want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 1 << 16}}
	if !slices.Equal(spec.Linux.UIDMappings, want) || !slices.Equal(spec.Linux.GIDMappings, want) {
		t.Errorf("mappings %+v", spec.Linux.UIDMappings)
	}
	if s := spec.Linux; len(s.MaskedPaths) != 0 || len(s.ReadonlyPaths) != 0 {
		t.Errorf("nothing was to be covered: %q, %q", s.MaskedPaths, s.ReadonlyPaths)
	}
	for _, snapshot := range append(m.containers.Exact(id).Get().Volumes(), id) {
		if got := b.users[snapshot]; len(got.UIDs) != 1 || got.UIDs[0].Host != 100000 {
			t.Errorf("snapshot %s shows %+v", snapshot, got)
		}
	}
	ok(t, m.Close())
	m, _ = b.manager()
	if p := must[state.Pod](t)(m.Pod(podID)); p.State != state.Ready {
		t.Errorf("after a restart the pod is %s", p.State)
	}
	ok(t, m.Remove(ctx, podID))
	idle(t, m)
	b.nothingLeft()
}
