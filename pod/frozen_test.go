package pod

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestCrashWhileFrozen: a container that was being saved when the daemon was killed goes on with the
// next one.
func TestCrashWhileFrozen(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m1, hands := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m1.Run(ctx, podConfig("p")))
	id := must[string](t)(m1.Create(ctx, podID, containerConfig("run")))
	ok(t, m1.StartContainer(ctx, id))
	crashed := b.crash(m1, hands, "pod.checkpoint.images")
	dir := t.TempDir()
	archive := filepath.Join(dir, "saved.tar")
	go m1.Checkpoint(ctx, id, archive, 0)
	<-crashed
	if n := len(must[[]os.DirEntry](t)(os.ReadDir(dir))); n != 1 {
		t.Errorf("%d files while it is being saved", n)
	}
	m2, _ := b.manager()
	b.thawed()
	ok(t, m2.Flush(ctx))
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	ok(t, m2.Checkpoint(ctx, id, archive, 0))
	if c := m2.containers.exact(id).get(); len(c.Saving) != 0 {
		t.Errorf("still saving %v", c.Saving)
	}
	ok(t, m2.Stop(ctx, podID))
	ok(t, m2.Remove(ctx, podID))
	idle(t, m2)
}

// TestCrashWhilePodIsSaved: what was written of a pod's checkpoint goes, and its containers go on.
func TestCrashWhilePodIsSaved(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m1, hands := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m1.Run(ctx, podConfig("p")))
	id := must[string](t)(m1.Create(ctx, podID, containerConfig("run")))
	ok(t, m1.StartContainer(ctx, id))
	crashed := b.crash(m1, hands, "pod.checkpoint.images")
	dir := t.TempDir()
	go m1.CheckpointPod(ctx, podID, dir, []string{id})
	<-crashed
	m2, _ := b.manager()
	b.thawed()
	ok(t, m2.Flush(ctx))
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	ok(t, m2.CheckpointPod(ctx, podID, dir, []string{id}))
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 2 {
		t.Errorf("checkpoint of %v", left)
	}
	ok(t, m2.Remove(ctx, podID))
	idle(t, m2)
}

// TestCrashBeforeAllForgetASavedPod: a daemon that was killed after one container had forgotten the files of a
// checkpoint, and before the other had, leaves no part of it.
func TestCrashBeforeAllForgetASavedPod(t *testing.T) {
	withCRIU(t)
	b := newBench(t)
	m1, hands := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m1.Run(ctx, podConfig("p")))
	ids := make([]string, 2)
	for i := range ids {
		c := containerConfig("run")
		c.Name = fmt.Sprint("c", i)
		ids[i] = must[string](t)(m1.Create(ctx, podID, c))
		ok(t, m1.StartContainer(ctx, ids[i]))
	}
	crashed := b.crash(m1, hands, "pod.checkpoint.images")
	dir := t.TempDir()
	go m1.CheckpointPod(ctx, podID, dir, ids)
	<-crashed
	forgot := *m1.containers.exact(ids[0]).get()
	if len(forgot.Saving) == 0 {
		t.Error("nothing is noted of the first container")
	}
	forgot.Saving = nil
	ok(t, m1.containerDir().Write(ids[0], forgot))
	m2, _ := b.manager()
	ok(t, m2.Flush(ctx))
	if left := must[[]os.DirEntry](t)(os.ReadDir(dir)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	ok(t, m2.Remove(ctx, podID))
	idle(t, m2)
}
