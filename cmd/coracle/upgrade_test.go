package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
