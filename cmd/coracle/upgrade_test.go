package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// filesIn reads the files of a directory.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found[filepath.Base(path)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A swap that was killed between any two renames, on its way forward or back, is completed in
// either direction.
func TestSwapIsDoneAgain(t *testing.T) {
	old := map[string]string{"coracled": "old", "coracle": "old", "kubectl": "another's"}
	fresh := map[string]string{"coracled": "new", "coracle-kube": "new", "coracle": "new"}
	after := maps.Clone(old)
	maps.Copy(after, fresh)
	programs := []string{"coracled", "coracle-kube", "coracle"}
	for forward := range len(programs) + 1 {
		for back := range forward + 1 {
			for _, ahead := range []bool{true, false} {
				if ahead && back > 0 { // an upgrade that goes back does not turn again
					continue
				}
				bin := t.TempDir()
				s := swap{Bin: bin, Stage: filepath.Join(bin, ".stage"), Programs: programs}
				writeFiles(t, bin, old)
				writeFiles(t, filepath.Join(s.Stage, "new"), fresh)
				writeFiles(t, filepath.Join(s.Stage, "old"), nil)
				killedForward, killedBack := s, s
				killedForward.Programs, killedBack.Programs = programs[:forward], programs[:back]
				complete, want := s.back, old
				if ahead {
					complete, want = s.forward, after
				}
				if err := errors.Join(s.keep(), killedForward.forward(), killedBack.back(), complete(), complete(), s.clean()); err != nil {
					t.Fatal(err)
				}
				if got := filesIn(t, bin); !maps.Equal(got, want) {
					t.Errorf("%d programs forward, %d back, then all forward %v: %v, want %v", forward, back, ahead, got, want)
				}
			}
		}
	}
}

// Status has one line for an upgrade that is not over, with what to do.
func TestStatusOfUpgrade(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	u := upgrade{place: p}
	for record, want := range map[string]string{
		"":                                "",
		`{"swap": {}}`:                    "it was interrupted: 'coracle upgrade --root ",
		`{"back": true, "why": "a leak"}`: "the old programs are not all back (a leak): 'coracle upgrade --root ",
		"not JSON":                        u.record() + ": invalid character",
	} {
		if record != "" {
			writeFiles(t, u.dir(), map[string]string{"upgrade.json": record})
		}
		all := upgradeHealth(p)
		if want == "" && len(all) > 0 || want != "" && (len(all) != 1 || all[0].Healthy || !strings.Contains(all[0].Message, want)) {
			t.Errorf("%q: %+v, want %q", record, all, want)
		}
		_ = os.Remove(u.record())
	}
	writeFiles(t, u.dir(), map[string]string{"upgrade.json": "{}"})
	lock, err := hold(u.lock())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if all := upgradeHealth(p); len(all) != 1 || !all[0].Healthy {
		t.Errorf("while an upgrade is at work: %+v", all)
	}
}

// fakeCoracle is a program that answers what an upgrade runs, and appends its first argument to the
// file $0.calls. up, shim and status are commands of sh.
func fakeCoracle(up, shim, status string) string {
	return "#!/bin/sh\necho \"$1\" >>\"$0.calls\"\ncase $1 in\nup) " + up + " ;;\nshim) " + shim + " ;;\nstatus) " + status +
		" ;;\nsnapshot) : >\"$0.restored\" ;;\nesac\n"
}

// placeWith is the place of a node named "own", whose old command is a script of [fakeCoracle], and
// whose cluster process has said something.
func placeWith(t *testing.T, script, said string) (p place, coracle string, programs swap) {
	t.Helper()
	p = place{root: t.TempDir(), state: t.TempDir()}
	if err := (&upOptions{Node: "own"}).remember(p); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	coracle = filepath.Join(bin, "coracle")
	if err := os.WriteFile(coracle, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, p.logs(), map[string]string{"kube.log": said})
	if err := os.Symlink(p.kubeLog(), coracle+".log"); err != nil {
		t.Fatal(err)
	}
	return p, coracle, swap{Bin: bin, Stage: filepath.Join(bin, ".stage")}
}

// Regression: whatever failed with the old programs, such as another node, the cluster went back to
// the data from before the upgrade.
func TestDataAreRestoredOnlyIfRefused(t *testing.T) {
	const well = `echo '[{"component": "coracled", "healthy": true}]'`
	refuses := func(line string) string {
		return `if [ ! -e "$0.restored" ]; then echo "coracle-kube: ` + line + `" >>"$0.log"; echo 'systemd knows no reason'; exit 1; fi`
	}
	newer := "the cluster's data was written by a newer version: Coracle v1.3.0 wrote it, and this is Coracle v1.2.9"
	for what, test := range map[string]struct {
		script   string
		given    bool // up when what is wrong is still so when it is asked again
		restored bool
		want     string
	}{
		"the API server refuses the data": {script: fakeCoracle(refuses(newer), ":", well), restored: true},
		"etcd refuses the data": {
			script: fakeCoracle(refuses("the cluster's data in /x cannot be used: data of a newer version: etcd 9.9"), ":", well), restored: true,
		},
		"up fails in another way": {
			script: fakeCoracle(`echo "coracle-kube: the port is taken" >>"$0.log"; echo taken; exit 1`, ":", well), want: "coracle up: taken",
		},
		"up fails before the cluster starts": {script: fakeCoracle("echo no coracled; exit 1", ":", well), want: "coracle up: no coracled"},
		"the shims do not restart":           {script: fakeCoracle(":", "echo hung; exit 1", well), want: "coracle shim: hung"},
		"this node has no room": {
			script: fakeCoracle(":", ":",
				`echo '[{"component": "node own", "healthy": false, "message": "full"}]'; `+
					`if [ -e "$0.asked" ]; then echo >"$0.said"; exec sleep 100; fi; : >"$0.asked"; exit 1`),
			given: true, want: "node own: full",
		},
		"another node has no room": {
			script: fakeCoracle(":", ":", `echo '[{"component": "node another", "healthy": false, "message": "full"}]'; exit 1`),
		},
	} {
		t.Run(what, func(t *testing.T) {
			// What a cluster process said before does not count.
			p, coracle, programs := placeWith(t, test.script, "coracle-kube: "+newer+"\n")
			u := &upgrade{
				place: p, steps: newSteps(t.Output()), deadline: time.Minute, Snapshot: "before.snapshot", Swap: programs,
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if test.given {
				said := coracle + ".said"
				if err := syscall.Mkfifo(said, 0o600); err != nil {
					t.Fatal(err)
				}
				go func() {
					defer cancel()
					_, _ = os.ReadFile(said)
				}()
			}
			err := u.retreat(ctx)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("it returned %v, want %q", err, test.want)
			}
			if _, err := os.Stat(coracle + ".restored"); (err == nil) != test.restored {
				calls, _ := os.ReadFile(coracle + ".calls")
				t.Errorf("the snapshot was restored: %t, want %t; calls: %q", err == nil, test.restored, calls)
			}
		})
	}
}

// Regression: an upgrade that was finished days after it had been interrupted went back to its
// snapshot, whatever was wrong by then, and all that had been written since was lost.
func TestOldSnapshotIsRestoredOnlyWhenAsked(t *testing.T) {
	refuses := `if [ ! -e "$0.restored" ]; then ` +
		`echo "coracle-kube: the cluster's data was written by a newer version: v1.3.0" >>"$0.log"; exit 1; fi`
	for what, test := range map[string]struct {
		ago           time.Duration
		before, back  bool // the record says to go back, --back
		restored      bool
		want          string
		unfinished    bool
		stillForwards bool
	}{
		"a moment ago": {restored: true, want: "the old programs run again"},
		"a week ago": {
			ago: 7 * 24 * time.Hour, want: "the old programs are not put back, as they may need the snapshot of ", unfinished: true, stillForwards: true,
		},
		"a week ago, on its way back": {
			ago: 7 * 24 * time.Hour, before: true, want: "restores them, without all that was written since", unfinished: true,
		},
		"a week ago, with --back": {ago: 7 * 24 * time.Hour, back: true, restored: true, want: "the old programs run again: --back was given"},
	} {
		t.Run(what, func(t *testing.T) {
			p, coracle, programs := placeWith(t, fakeCoracle(refuses, ":", `echo '[{"component": "coracled", "healthy": true}]'`), "")
			record := &upgrade{place: p, Snapshot: "before.snapshot", Begun: time.Now().Add(-test.ago), Back: test.before, Swap: programs}
			if err := errors.Join(os.MkdirAll(record.dir(), 0o700), record.write()); err != nil {
				t.Fatal(err)
			}
			u := &upgrade{place: p, steps: newSteps(t.Output()), deadline: time.Minute, back: test.back}
			if err := u.run(t.Context(), nil, t.Output()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("it returned %v, want %q", err, test.want)
			}
			if _, err := os.Stat(coracle + ".restored"); (err == nil) != test.restored {
				t.Errorf("the snapshot was restored: %t, want %t", err == nil, test.restored)
			}
			after := &upgrade{place: p}
			if unfinished, err := after.read(); err != nil || unfinished != test.unfinished || unfinished && after.Back == test.stillForwards {
				t.Errorf("left behind: %t, %+v, %v", unfinished, after, err)
			}
		})
	}
	u := &upgrade{place: place{root: t.TempDir(), state: t.TempDir()}, steps: newSteps(t.Output()), deadline: time.Minute, back: true}
	if err := os.MkdirAll(u.kubeRoot(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := u.run(t.Context(), nil, t.Output()); err == nil || !strings.Contains(err.Error(), "nothing to go back to") {
		t.Errorf("--back without an upgrade: %v", err)
	}
}

// Regression: the new version's command, executed where it was unpacked, replaced itself and said
// that all was well.
func TestUpgradeByAnotherCommand(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	coracle := withDoubles(t)
	u := func() *upgrade { return &upgrade{place: p, steps: newSteps(t.Output())} }
	from := "runs from " + filepath.Dir(coracle) + ", and this command replaces"
	remedy := "run '" + coracle + " upgrade --root " + p.root

	supervisor := exec.Command(coracle, "sh", "-c", "echo; exec sleep 1000")
	supervisor.Env = append(os.Environ(), asSupervisor+"="+p.state)
	out, err := supervisor.StdoutPipe()
	if err == nil {
		err = supervisor.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	err = u().prepare(t.Context(), nil, t.Output())
	if err == nil || !strings.Contains(err.Error(), "supervisor "+from) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("with another supervisor: %v", err)
	}
	_ = supervisor.Process.Signal(unix.SIGTERM)
	_ = supervisor.Wait()

	lock, err := hold(p.supervisor()) // by this program
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	if err := u().prepare(t.Context(), nil, t.Output()); err == nil || strings.Contains(err.Error(), "runs from") {
		t.Errorf("without another: %v", err)
	}
	startCoracled(t, coracle, p, "")
	err = u().prepare(t.Context(), nil, t.Output())
	if err == nil || !strings.Contains(err.Error(), "coracled "+from) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("with another coracled: %v", err)
	}
}

func TestUpgradeOfSeveralNodes(t *testing.T) {
	p := place{root: t.TempDir(), state: t.TempDir()}
	if err := (&upOptions{Further: 1}).remember(p); err != nil {
		t.Fatal(err)
	}
	u := upgrade{place: p}
	if err := u.prepare(t.Context(), nil, t.Output()); err == nil || !strings.Contains(err.Error(), "several nodes") {
		t.Errorf("an upgrade of several nodes: %v", err)
	}
}
