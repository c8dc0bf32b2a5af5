package shim

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/coracle-project/coracle/shim/api"
)

// drainRig is a container whose init is a child of the test and whose log can hang.
func drainRig(t *testing.T) (*container, *pumpRig) {
	r := newPumpRig(t)
	s := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	c := newContainer(s, record{Version: recordVersion, ID: "one", Phase: phaseRunning, Log: true})
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.stdio = &stdio{c: c, pumps: []*pump{r.p}, log: r.p.log}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if c.init, err = newProcess(child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.init.close)
	s.add(c)
	return c, r
}

// exits returns the ids of the containers whose exits have been reported.
func exits(t *testing.T, s *Service) <-chan string {
	ctx, cancel := context.WithCancel(context.Background())
	ids, ready, ended := make(chan string, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		err := s.events.subscribe(ctx, func() []*api.Event { return nil }, func(ev *api.Event) error {
			switch ev.Kind {
			case api.Event_READY:
				close(ready)
			case api.Event_EXIT:
				ids <- ev.Id
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	<-ready
	t.Cleanup(func() { cancel(); <-ended })
	return ids
}

// A log on a disk that hangs does not delay an exit. A deletion waits for the log, with a limit.
func TestExitIsToldWhileTheLogHangs(t *testing.T) {
	c, r := drainRig(t)
	told := exits(t, c.s)
	r.fifo.WriteString("last words\n")
	r.p.log.mu.Lock() // a write that hangs holds the lock
	go c.awaitExit()
	if id := <-told; id != "one" {
		t.Errorf("exit of %q", id)
	}
	if rec := c.record(); rec.Phase != phaseExited || rec.Process.Exit == nil {
		t.Errorf("record %+v", rec)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.delete(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("delete while the log hangs: %v", err)
	}
	select {
	case <-c.drained:
		t.Error("drained while the log hangs")
	default:
	}
	r.p.log.mu.Unlock()
	<-c.drained
	if got := r.text(); got != "last words\n" {
		t.Errorf("log %q", got)
	}
	if err := c.delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// When an exit is reported, the log is complete.
func TestExitIsToldAfterTheLog(t *testing.T) {
	c, r := drainRig(t)
	told := exits(t, c.s)
	r.fifo.WriteString("last words")
	go c.awaitExit()
	<-told
	if got := r.text(); got != "last words" {
		t.Errorf("log %q", got)
	}
	<-c.watched
}
