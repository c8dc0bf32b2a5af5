package main

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor starts its program again when it ends, and both end on SIGTERM.
func TestSupervisorRestarts(t *testing.T) {
	dir := t.TempDir()
	// Each life says its pid; the first ends at once.
	script := `echo $$; if [ ! -e "$0" ]; then : >"$0"; exit 3; fi; exec sleep 1000`
	cmd := exec.Command("/proc/self/exe", "sh", "-c", script, filepath.Join(dir, "lived"))
	cmd.Env = append(os.Environ(), asSupervisor+"="+dir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var pids []string
	for len(pids) < 2 && lines.Scan() {
		pids = append(pids, strings.TrimSpace(lines.Text()))
	}
	if len(pids) != 2 || pids[0] == pids[1] {
		t.Fatalf("the program lived as %q, want two lives (%v)", pids, lines.Err())
	}
	if pid, err := holder(filepath.Join(dir, "kube.lock")); err != nil || pid != cmd.Process.Pid {
		t.Errorf("the lock is held by %d, %v, want the supervisor, %d", pid, err, cmd.Process.Pid)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("the program was started again: %s", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the supervisor ended with %v", err)
	}
	if _, err := os.Stat("/proc/" + pids[1]); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the program outlived its supervisor: %v", err)
	}
	if pid, err := holder(filepath.Join(dir, "kube.lock")); err != nil || pid != 0 {
		t.Errorf("the lock is still held by %d, %v", pid, err)
	}
}

// Regression: a control-plane node that had been removed from its cluster started again for ever.
func TestSupervisorEndsForGood(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	cmd := exec.Command("/proc/self/exe", "--log", log, "sh", "-c", `echo once; [ -e "$0" ] && exit 1; : >"$0"; exit 78`, filepath.Join(dir, "lived"))
	cmd.Env = append(os.Environ(), asSupervisor+"="+dir)
	said, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitForGood || !strings.Contains(string(said), "would end again") {
		t.Errorf("it ended with %v, and said: %s", err, said)
	}
	if content, err := os.ReadFile(log); strings.Count(string(content), "once") != 1 {
		t.Errorf("the log is %s (%v), want one life", content, err)
	}
}

// A second supervisor of the same cluster is refused.
func TestOneSupervisor(t *testing.T) {
	dir := t.TempDir()
	lock, err := hold(filepath.Join(dir, "kube.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	cmd := exec.Command("/proc/self/exe", "true")
	cmd.Env = append(os.Environ(), asSupervisor+"="+dir)
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "another supervisor runs this cluster") {
		t.Errorf("a second supervisor ended with %v, and said: %s", err, said)
	}
}

// What the program says, on both of its outputs and in all of its lives, is in the supervisor's
// log, together with what the supervisor has to say.
func TestSupervisorLogs(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	script := `echo out; echo err >&2; if [ ! -e "$0" ]; then : >"$0"; exit 3; fi; printf "no end"; kill -TERM $PPID; exec sleep 1000`
	cmd := exec.Command("/proc/self/exe", "--log", log, "sh", "-c", script, filepath.Join(dir, "lived"))
	cmd.Env = append(os.Environ(), asSupervisor+"="+dir)
	if said, err := cmd.CombinedOutput(); err != nil || len(said) != 0 {
		t.Errorf("it ended with %v, and said: %s", err, said)
	}
	content, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`^out\nerr\ntime=\S+ level=ERROR msg="the cluster process ended and is started again" .*\nout\nerr\nno end$`)
	if !want.Match(content) {
		t.Errorf("the log is %q", content)
	}
}

// A second program is started again, too, has a log of its own, and does not end the first by its
// failures.
func TestSupervisorOfTwo(t *testing.T) {
	dir := t.TempDir()
	logs := []string{filepath.Join(dir, "first"), filepath.Join(dir, "second")}
	ready := filepath.Join(dir, "ready")
	if err := unix.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	// The second refuses to work twice, and then has the first end the supervisor.
	cmd := exec.Command("/proc/self/exe", "--log", logs[0], "--log", logs[1],
		"sh", "-c", `read line <"$0"; echo "$line"; kill -TERM $PPID; exec sleep 1000`, ready,
		"--", "sh", "-c", `echo life >>"$0.lives"; echo second; [ $(wc -l <"$0.lives") = 3 ] || exit 1; echo heard >"$0"; exec sleep 1000`, ready)
	cmd.Env = append(os.Environ(), asSupervisor+"="+dir)
	if said, err := cmd.CombinedOutput(); err != nil || len(said) != 0 {
		t.Errorf("it ended with %v, and said: %s", err, said)
	}
	for k, want := range []string{
		`^(time=\S+ level=ERROR msg="sh ended and is started again" .*\n){2}heard\n$`,
		`^second\nsecond\nsecond\n$`,
	} {
		content, err := os.ReadFile(logs[k])
		if err != nil || !regexp.MustCompile(want).Match(content) {
			t.Errorf("the log is %q, %v", content, err)
		}
	}
}

// Restarts wait longer and longer, but not those of a process that is killed while it serves.
func TestPauses(t *testing.T) {
	type life struct {
		lived   time.Duration
		refused bool
		want    time.Duration // the pause after it
	}
	const short, ms = 300 * time.Millisecond, time.Millisecond
	for name, lives := range map[string][]life{
		"each life is short": {
			{short, false, 100 * ms},
			{short, false, 200 * ms},
			{short, true, 400 * ms},
			{short, true, 800 * ms},
			{short, false, 1600 * ms},
			{short, false, 3200 * ms},
			{short, false, 6400 * ms},
			{short, false, longestPause},
			{short, false, longestPause},
			{settled, false, 100 * ms},
			{short, false, 200 * ms},
		},
		"killed while it serves": {
			{2 * served, false, 100 * ms},
			{2 * served, false, 200 * ms},
			{2 * served, false, 400 * ms},
			{served, false, 800 * ms},
			{served, false, servedPause},
			{served, false, servedPause},
			{short, false, 2 * servedPause},
			{served, false, servedPause},
		},
		"a slow machine, on which it reports an error": {
			{served, true, 100 * ms}, {served, true, 200 * ms}, {served, true, 400 * ms}, {served, true, 800 * ms}, {served, true, 1600 * ms},
		},
	} {
		next := backoff(firstPause)
		for i, l := range lives {
			if got := next.after(l.lived, l.refused); got != l.want {
				t.Errorf("%s: after life %d the pause is %v, want %v", name, i, got, l.want)
			}
		}
	}
}

// A program that reports an error each time is not started forever. One that is killed is, and
// starts again.
func TestSupervisorGivesUp(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		lives  int
	}{
		"reports an error":             {`echo life >>"$0"; exit 1`, mostTries},
		"is killed once, then reports": {`echo life >>"$0"; if [ ! -e "$0.lived" ]; then : >"$0.lived"; kill -9 $$; fi; exit 1`, 1 + mostTries},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "lives")
			synctest.Test(t, func(t *testing.T) {
				err := program{args: []string{"sh", "-c", test.script, file}}.supervise(t.Context(), slog.New(slog.DiscardHandler))
				if err == nil || err.Error() != "the cluster process cannot be started: exit status 1" {
					t.Errorf("the supervisor ended with %v", err)
				}
			})
			lived, err := os.ReadFile(file)
			if lives := strings.Count(string(lived), "life\n"); err != nil || lives != test.lives {
				t.Errorf("%d lives, %v, want %d", lives, err, test.lives)
			}
		})
	}
}

// Regression: a program that was killed at its gate was started again, without a gate.
func TestSupervisorWithGate(t *testing.T) {
	for name, test := range map[string]struct {
		opened bool
		script string
		want   string
		lives  int
	}{
		"killed before":     {false, `kill -9 $$`, "the cluster process ended before it was to start: signal: killed", 1},
		"an error before":   {false, `exit 1`, "the cluster process ended before it was to start: exit status 1", 1},
		"no error before":   {false, `exit 0`, "the cluster process ended before it was to start: it exited with 0 unexpectedly", 1},
		"killed afterwards": {true, `[ $# = 1 ] && kill -9 $$; exit 78`, "the cluster process ended and would end again: exit status 78", 2},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "lives")
			g, err := newGate()
			if err != nil {
				t.Fatal(err)
			}
			defer g.close()
			if test.opened {
				g.open()
			}
			p := program{args: []string{"sh", "-c", `echo life >>"$0"; ` + test.script, file}, gate: &farGate{g.far, g.ordered}}
			if err := p.supervise(t.Context(), slog.New(slog.DiscardHandler)); err == nil || err.Error() != test.want {
				t.Errorf("the supervisor ended with %v, want %s", err, test.want)
			}
			lived, err := os.ReadFile(file)
			if lives := strings.Count(string(lived), "life\n"); err != nil || lives != test.lives {
				t.Errorf("%d lives, %v, want %d", lives, err, test.lives)
			}
		})
	}
}

// No exit code of an optional program ends its supervision.
func TestSupervisorKeepsOptionalProgram(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lives")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err := program{args: []string{"sh", "-c", `echo life >>"$0"; exit 78`, file}, optional: true}.supervise(ctx, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Error(err)
		}
	})
	lived, err := os.ReadFile(file)
	if lives := strings.Count(string(lived), "life\n"); err != nil || lives < 3 {
		t.Errorf("%d lives, %v", lives, err)
	}
}

// TestSupervisedProgramsEnvironment: profiles with short stacks, unless the user wants something
// else of the Go runtime.
func TestSupervisedProgramsEnvironment(t *testing.T) {
	for name, c := range map[string]struct{ have, want []string }{
		"none":        {[]string{"A=1"}, []string{"A=1", "GODEBUG=profstackdepth=32"}},
		"user's":      {[]string{"GODEBUG=x=1", "A=1"}, []string{"GODEBUG=x=1", "A=1"}},
		"similar":     {[]string{"GODEBUGS=x=1"}, []string{"GODEBUGS=x=1", "GODEBUG=profstackdepth=32"}},
		"empty value": {[]string{"GODEBUG="}, []string{"GODEBUG="}},
	} {
		if got := shallowProfiles(c.have); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	var log strings.Builder
	if err := (program{args: []string{"/usr/bin/env"}, log: &log}).once(t.Context(), nil); err == nil {
		t.Error("a supervised program that ends with 0 is no error")
	}
	if os.Getenv("GODEBUG") == "" && !strings.Contains(log.String(), "GODEBUG=profstackdepth=32\n") {
		t.Errorf("the program's environment: %s", log.String())
	}
}
