package pod

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/pod/mounts"
	"github.com/coracle-project/coracle/pod/table"
)

// unlistable makes reading the directory fail with ELOOP. Its contents are then in the directory
// next to it.
func unlistable(dir string) error {
	if err := os.Rename(dir, dir+".kept"); err != nil && !os.IsNotExist(err) {
		return err
	}
	return os.Symlink(dir, dir)
}

func listable(dir string) error {
	if err := os.Remove(dir); err != nil {
		return err
	}
	if err := os.Rename(dir+".kept", dir); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// If the volumes of an unmanaged container cannot be listed, none is removed.
func TestVolumesOfUnmanagedCannotBeRead(t *testing.T) {
	b := newBench(t)
	m1, podID, id := b.lone()
	ok(t, os.Truncate(m1.dirs.Containers().File(id), 3))
	volumes := filepath.Join(m1.dirs.Containers().Of(id), "volumes")
	ok(t, unlistable(volumes))
	m, _ := b.manager()
	idle(t, m)
	b.untouched(m, podID, id)
	if m.RecoveryErrors() == 0 {
		t.Error("recovery says that it is complete")
	}
	if err := m.RemoveContainer(t.Context(), id); err == nil {
		t.Error("removed without its volumes")
	}
	ok(t, listable(volumes))
	ok(t, m.RemoveContainer(t.Context(), id))
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// A bare directory is left alone if it is unknown whether something is mounted in it.
func TestBareDirectoryCannotBeRead(t *testing.T) {
	b := newBench(t)
	m, _ := b.unstarted()
	id := table.NewID()
	ok(t, m.dirs.Containers().Make(id))
	volumes := filepath.Join(m.dirs.Containers().Of(id), "volumes")
	ok(t, mountTmpfs(filepath.Join(volumes+".kept", "1")))
	ok(t, unlistable(volumes))
	ok(t, m.Start(t.Context()))
	idle(t, m)
	if mounted, err := mounts.First([]string{filepath.Join(volumes+".kept", "1")}); err != nil || mounted == "" {
		t.Errorf("mounted: %q, %v", mounted, err)
	}
	if _, kept := m.recovery.Find(UnmanagedContainer, id); !kept {
		t.Error("it is not unmanaged")
	}
	ok(t, listable(volumes))
	ok(t, m.RemoveContainer(t.Context(), id))
	idle(t, m)
	b.nothingLeft()
}
