package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A purge deletes no claim's data unless it was told to, and says how much there is before anything
// ends.
func TestPurgeOfVolumes(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	if err := os.MkdirAll(p.state, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pvc-1", "pvc-2"} {
		if err := os.MkdirAll(filepath.Join(p.volumesDir(), name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(dir, "outside")
	precious := filepath.Join(p.volumesDir(), "pvc-1", "file")
	for _, path := range []string{outside, precious} {
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(p.volumesDir(), "pvc-2", "link")); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 6443, ServiceCIDR: "10.112.0.0/16"})
	// Blocks of directories count, too.
	amount := regexp.MustCompile(`the data of 2 volumes of claims, 1\.0\d?MB in ` + regexp.QuoteMeta(p.volumesDir()))
	alone(t, func() {
		var said bytes.Buffer
		if err := down(t.Context(), p, false, false, &said); err != nil {
			t.Error(err)
		}
		if err := down(t.Context(), p, true, false, &said); err == nil || !amount.MatchString(err.Error()) {
			t.Errorf("without consent: %v, want %v", err, amount)
		}
		if _, err := os.Stat(precious); err != nil {
			t.Error("data was deleted without consent:", err)
		}
		said.Reset()
		if err := down(t.Context(), p, true, true, &said); err != nil {
			t.Error(err)
		}
		if !amount.MatchString(said.String()) {
			t.Errorf("said %q, want %v", said.String(), amount)
		}
	})
	if _, err := os.Stat(p.root); err == nil {
		t.Error("it is still there")
	}
	if _, err := os.Stat(outside); err != nil {
		t.Error("what a link leads to was deleted:", err)
	}
}

// A volume that the cluster process makes while down asks it to end is kept, too, and so is all
// else that a purge would delete.
func TestPurgeOfAVolumeThatIsBeingMade(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	precious := filepath.Join(p.volumesDir(), "pvc-late", "file")
	for _, path := range []string{p.state, p.volumesDir(), filepath.Join(p.volumesDir(), ".pvc-begun-1")} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 6443, ServiceCIDR: "10.112.0.0/16"})
	late := filepath.Dir(precious)
	process := exec.Command("flock", "--no-fork", p.supervisor(), "sh", "-c",
		`trap 'mkdir -p "$1" && echo x >"$1/file"; exit' TERM; echo $$ >"$0"; while :; do sleep 0.01; done`, p.supervisor(), late)
	ended := startHolder(t, p, process)
	alone(t, func() {
		err := down(t.Context(), p, true, false, io.Discard)
		if err == nil || !strings.Contains(err.Error(),
			"down has stopped everything, and deleted nothing: --purge would delete the data of 1 volume") {
			t.Errorf("down: %v", err)
		}
		if err := <-ended; err != nil {
			t.Error("the process:", err)
		}
		for _, path := range []string{precious, p.settings()} {
			if _, err := os.Stat(path); err != nil {
				t.Error("it was deleted:", err)
			}
		}
		if err := down(t.Context(), p, true, true, io.Discard); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(p.root); err == nil {
		t.Error("it is still there")
	}
}

// startHolder starts the process, and returns when it holds the supervisor's lock.
func startHolder(t *testing.T, p place, process *exec.Cmd) <-chan error {
	t.Helper()
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if pid, err := holder(p.supervisor()); err == nil && pid == process.Process.Pid {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal("no process holds the lock")
		}
	}
	return ended
}
