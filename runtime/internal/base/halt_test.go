package base

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit/nofiles"
)

// haltVar makes this program freeze a container, as for a kill, and be killed then.
const haltVar = "CORACLE_TEST_HALT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(haltVar); dir != "" {
		fmt.Fprintln(os.Stderr, diesFrozen(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func diesFrozen(dir string) error {
	s, err := NewStore(dir, nil)
	if err != nil {
		return err
	}
	rec, err := s.Load("c")
	if err != nil {
		return err
	}
	if thaw, err := rec.halt(context.Background()); thaw == nil {
		return fmt.Errorf("not frozen: %w", err)
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// sleeping is a store with the container "c", a process in cgroups of its own.
func sleeping(t *testing.T) (*Store, *Record) {
	t.Helper()
	name := fmt.Sprintf("coracle-halt-%d-%d", os.Getpid(), serial.Add(1))
	paths := map[string]string{"": filepath.Join("/sys/fs/cgroup", name)}
	if !cgroups.IsCgroup2UnifiedMode() {
		paths = map[string]string{}
		for _, controller := range []string{"devices", "freezer"} {
			paths[controller] = filepath.Join("/sys/fs/cgroup", controller, name)
		}
	}
	for _, path := range paths {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := rmdirIdle(path); err != nil {
				t.Error(err)
			}
		})
	}
	cmd := exec.Command("sleep", "1000000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rec := &Record{Version: recordVersion, ID: "c", Created: time.Now(), CgroupPaths: paths}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = rec.unfreeze()
		_ = cmd.Wait()
	})
	for _, path := range paths {
		if err := cgroups.WriteCgroupProc(path, cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	s, err := NewStore(t.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Claim(rec); err != nil {
		t.Fatal(err)
	}
	return s, rec
}

// is fails the test unless the container is frozen or not, and has so many notes.
func (r *Record) is(t *testing.T, want cgroups.FreezerState, notes int) {
	t.Helper()
	cgm, err := r.CgroupManager()
	if err != nil {
		t.Fatal(err)
	}
	if state, err := cgm.GetFreezerState(); err != nil || state != want {
		t.Errorf("it is %s (%v), want %s", state, err, want)
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, haltPrefix+"*")); len(left) != notes {
		t.Errorf("notes %q, want %d", left, notes)
	}
}

// A kill is killed while all is frozen: the next load of the container thaws it.
func TestKillerIsKilled(t *testing.T) {
	s, rec := sleeping(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), haltVar+"="+s.dir)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Fatalf("%v: %s", err, out)
	}
	rec.is(t, cgroups.Frozen, 1)
	if _, err := s.Load("c"); err != nil {
		t.Fatal(err)
	}
	rec.is(t, cgroups.Thawed, 0)
}

// What a kill under way froze stays frozen if another process loads the container; the kill thaws
// it.
func TestKillerLives(t *testing.T) {
	s, rec := sleeping(t)
	thaw, err := rec.halt(t.Context())
	if thaw == nil {
		t.Fatalf("not frozen: %v", err)
	}
	if _, err := s.Load("c"); err != nil {
		t.Error(err)
	}
	rec.is(t, cgroups.Frozen, 1)
	if err := thaw(); err != nil {
		t.Error(err)
	}
	rec.is(t, cgroups.Thawed, 0)
}

// A kill thaws what it has frozen, even if it can open nothing by then.
func TestThawWithoutDescriptors(t *testing.T) {
	_, rec := sleeping(t)
	thaw, err := rec.halt(t.Context())
	if thaw == nil {
		t.Fatalf("not frozen: %v", err)
	}
	rec.is(t, cgroups.Frozen, 1)
	nofiles.Run(t, func() {
		if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); !errors.Is(err, unix.EMFILE) {
			t.Errorf("open: %d, %v, want %v", fd, err, unix.EMFILE)
		}
		if err := thaw(); err != nil {
			t.Error(err)
		}
	})
	rec.is(t, cgroups.Thawed, 0)
}

// A pause is no kill: no one ends it but who resumes.
func TestPauseStays(t *testing.T) {
	s, rec := sleeping(t)
	if err := rec.freeze(cgroups.Frozen); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load("c"); err != nil {
		t.Error(err)
	}
	rec.is(t, cgroups.Frozen, 0)
}

// A note that cannot be written keeps no one from killing, but from freezing.
func TestNoFreezerWithoutNote(t *testing.T) {
	s, rec := sleeping(t)
	if err := os.Rename(rec.dir, filepath.Join(s.dir, "gone")); err != nil {
		t.Fatal(err)
	}
	if thaw, err := rec.halt(t.Context()); thaw != nil || err != nil {
		t.Errorf("frozen: %t, %v", thaw != nil, err)
	}
	rec.is(t, cgroups.Thawed, 0)
	if err := rec.killAll(t.Context()); err != nil {
		t.Error(err)
	}
}
