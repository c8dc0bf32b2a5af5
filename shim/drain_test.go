package shim

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/containerlog"
)

// drainRig is a container whose init is a child of the test.
type drainRig struct {
	*container
	path string   // of its log
	fifo *os.File // its stdout
	keep func()   // called when the log has a new file
}

func newDrainRig(t *testing.T) *drainRig { return newLimitedDrainRig(t, containerlog.Limit{}) }

func newLimitedDrainRig(t *testing.T, limit containerlog.Limit) *drainRig {
	r := &drainRig{path: filepath.Join(t.TempDir(), "log"), keep: func() {}}
	s := New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	c := newContainer(s, record{Version: recordVersion, ID: "one", Phase: phaseRunning, Log: true})
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stdout := filepath.Join(c.dir, "stdout")
	if err := makeFIFO(stdout); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.fifo, err = openPolled(stdout, unix.O_RDWR); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.fifo.Close() })
	pipe, err := openPolled(stdout, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	place, err := containerlog.PlaceOf(filepath.Dir(r.path), r.path)
	if err != nil {
		t.Fatal(err)
	}
	c.stdio = &stdio{c: c}
	if c.stdio.log, err = containerlog.Open(place, limit); err != nil {
		t.Fatal(err)
	}
	p, err := containerlog.OpenPump(containerlog.Config{
		Stream: "stdout", Pipe: pipe, Stage: filepath.Join(c.dir, "stdout"+stageName), Log: c.stdio.log, Keep: func() { r.keep() },
		Out: &c.stdio.out, Busy: func() {}, Share: s.share, Rate: &c.stdio.rate, Slog: s.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.stdio.pumps = []*containerlog.Pump{p}
	child := exec.Command("true")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if c.init, err = newProcess(child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.init.close)
	s.add(c)
	r.container = c
	return r
}

// logged says whether the log has one line, with this end.
func (r *drainRig) logged(t *testing.T, end string) {
	t.Helper()
	if b, err := os.ReadFile(r.path); err != nil || strings.Count(string(b), "\n") != 1 || !strings.HasSuffix(string(b), end) {
		t.Errorf("log %q, %v", b, err)
	}
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
	c := newDrainRig(t)
	told := exits(t, c.s)
	c.fifo.WriteString("last words\n")
	hangs, release, reopened := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		reopened <- c.stdio.log.Reopen(func() { // it holds off writes, as one that hangs does
			close(hangs)
			<-release
		})
	}()
	<-hangs
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
	close(release)
	<-c.drained
	if err := <-reopened; err != nil {
		t.Error(err)
	}
	c.logged(t, " stdout F last words\n")
	if err := c.delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// When an exit is reported, the log is complete.
func TestExitIsToldAfterTheLog(t *testing.T) {
	c := newDrainRig(t)
	told := exits(t, c.s)
	c.fifo.WriteString("last words")
	go c.awaitExit()
	<-told
	c.logged(t, " stdout P last words\n")
	<-c.watched
}

// A shim that is killed between the end of init and the record of it leaves init to its next
// parent, and so the code: init is reaped afterwards.
func TestExitIsReapedWhenRecorded(t *testing.T) {
	c := newLimitedDrainRig(t, containerlog.Limit{FileBytes: 1000, Files: 2})
	waitable := func() error {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.init.pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil && info.Signo == 0 {
			err = errors.New("it has not ended")
		}
		return err
	}
	if _, err := c.stdio.log.File().WriteString(strings.Repeat("x", 999) + "\n"); err != nil {
		t.Fatal(err)
	}
	drained := false
	c.keep = func() {
		drained = true
		if err := waitable(); err != nil {
			t.Errorf("while its output is drained: %v", err)
		}
	}
	c.fifo.WriteString("last words\n")
	go c.awaitExit()
	<-c.watched
	if !drained {
		t.Error("its output was not drained: this test proves nothing")
	}
	if rec, err := readRecord(c.dir); err != nil || rec.Process.Exit == nil {
		t.Errorf("record %+v, %v", rec, err)
	}
	if err := waitable(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("after the record is written: %v", err)
	}
}
