package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// caught is a pod that a daemon is killed at, while it saves the pod's running containers into dir.
type caught struct {
	*bench
	m1      *Manager
	podID   string
	ids     []string
	dir     string
	crashed <-chan struct{}
}

// savingPod makes a pod with n running containers, and a daemon that will be killed when it has
// saved the memory of one.
func savingPod(t *testing.T, n int) caught {
	t.Helper()
	withCRIU(t)
	b := newBench(t)
	m, hands := b.manager()
	ctx := t.Context()
	podID := must[string](t)(m.Run(ctx, podConfig("p")))
	ids := make([]string, n)
	for i := range ids {
		c := containerConfig("run")
		c.Name = fmt.Sprint("c", i)
		ids[i] = must[string](t)(m.Create(ctx, podID, c))
		ok(t, m.StartContainer(ctx, ids[i]))
	}
	return caught{b, m, podID, ids, t.TempDir(), b.crash(m, hands, "pod.checkpoint.images")}
}

// files is how many there are in dir.
func (c *caught) files() int {
	c.t.Helper()
	return len(must[[]os.DirEntry](c.t)(os.ReadDir(c.dir)))
}

// TestCrashWhileFrozen: a container that was being saved when the daemon was killed goes on with
// the next one.
func TestCrashWhileFrozen(t *testing.T) {
	c := savingPod(t, 1)
	ctx, id := t.Context(), c.ids[0]
	archive := filepath.Join(c.dir, "saved.tar")
	go c.m1.Checkpoint(ctx, id, archive, 0)
	<-c.crashed
	if n := c.files(); n != 1 {
		t.Errorf("%d files while it is being saved", n)
	}
	m2, _ := c.manager()
	c.thawed()
	ok(t, m2.Flush(ctx))
	if n := c.files(); n != 0 {
		t.Errorf("%d files left", n)
	}
	ok(t, m2.Checkpoint(ctx, id, archive, 0))
	if r := m2.containers.Exact(id).Get(); len(r.Saving) != 0 {
		t.Errorf("still saving %v", r.Saving)
	}
	ok(t, m2.Stop(ctx, c.podID))
	ok(t, m2.Remove(ctx, c.podID))
	idle(t, m2)
}

// TestCrashWhilePodIsSaved: what was written of a pod's checkpoint goes, and its containers go on.
func TestCrashWhilePodIsSaved(t *testing.T) {
	c := savingPod(t, 1)
	ctx := t.Context()
	go c.m1.CheckpointPod(ctx, c.podID, c.dir, c.ids)
	<-c.crashed
	m2, _ := c.manager()
	c.thawed()
	ok(t, m2.Flush(ctx))
	if n := c.files(); n != 0 {
		t.Errorf("%d files left", n)
	}
	ok(t, m2.CheckpointPod(ctx, c.podID, c.dir, c.ids))
	if n := c.files(); n != 2 {
		t.Errorf("checkpoint of %d files", n)
	}
	ok(t, m2.Remove(ctx, c.podID))
	idle(t, m2)
}

// TestRetryBeforeCleanUp: a pod that was being saved when the daemon was killed is saved again,
// into the same directory, before the clean-up has had its turn. That leaves the new checkpoint
// alone, whichever of the containers is in it.
func TestRetryBeforeCleanUp(t *testing.T) {
	for name, again := range map[string]func(ids []string) []string{
		"all":      func(ids []string) []string { return ids },
		"one":      func(ids []string) []string { return ids[:1] },
		"reversed": func(ids []string) []string { return []string{ids[1], ids[0]} },
	} {
		t.Run(name, func(t *testing.T) {
			c := savingPod(t, 2)
			ctx := t.Context()
			go c.m1.CheckpointPod(ctx, c.podID, c.dir, c.ids)
			<-c.crashed
			m2, _ := c.unstarted()
			goOn := occupyCleaner(m2)
			ok(t, m2.Start(ctx))
			ids := again(c.ids)
			if len(ids) == 1 {
				ok(t, m2.StopContainer(ctx, c.ids[1], 0))
			}
			ok(t, m2.CheckpointPod(ctx, c.podID, c.dir+"/", ids))
			goOn()
			ok(t, m2.Flush(ctx))
			if n := c.files(); n != len(ids)+1 {
				t.Errorf("checkpoint of %d files", n)
			}
			for _, id := range c.ids {
				if r := m2.containers.Exact(id).Get(); len(r.Saving) != 0 {
					t.Errorf("still saving %v", r.Saving)
				}
			}
			ok(t, m2.Remove(ctx, c.podID))
			idle(t, m2)
		})
	}
}

// TestCrashBeforeAllForgetASavedPod: a daemon that was killed after one container had forgotten the
// files of a checkpoint, and before the other had, leaves no part of it.
func TestCrashBeforeAllForgetASavedPod(t *testing.T) {
	c := savingPod(t, 2)
	ctx := t.Context()
	go c.m1.CheckpointPod(ctx, c.podID, c.dir, c.ids)
	<-c.crashed
	forgot := *c.m1.containers.Exact(c.ids[0]).Get()
	if len(forgot.Saving) == 0 {
		t.Error("nothing is noted of the first container")
	}
	forgot.Saving = nil
	ok(t, c.m1.dirs.Containers().Write(c.ids[0], forgot, nil))
	m2, _ := c.manager()
	ok(t, m2.Flush(ctx))
	if n := c.files(); n != 0 {
		t.Errorf("%d files left", n)
	}
	ok(t, m2.Remove(ctx, c.podID))
	idle(t, m2)
}

// occupyCleaner has all of a manager's background deletions wait until goOn is called.
func occupyCleaner(m *Manager) (goOn func()) {
	begun, over := make(chan struct{}), make(chan struct{})
	for range cleaners {
		m.clean.Queue("job that waits", "id", func(context.Context) error {
			begun <- struct{}{}
			<-over
			return nil
		})
	}
	for range cleaners {
		<-begun
	}
	return func() { close(over) }
}
