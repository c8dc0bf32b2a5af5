package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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

// Regression: a control-plane node that left its cluster deleted the data of claims without asking.
func TestLeaveKeepsVolumes(t *testing.T) {
	dir := t.TempDir()
	p := place{root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state")}
	volume := filepath.Join(p.volumesDir(), "pvc-1")
	peers := filepath.Join(p.kubeRoot(), "etcd", "peers.json")
	for _, path := range []string{p.state, volume, filepath.Dir(peers)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(peers, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	remember(t, p, upOptions{Bind: "127.0.0.1", Port: 6443, ServiceCIDR: "10.112.0.0/16"})
	alone(t, func() {
		err := leave(t.Context(), p, leaving{force: true}, t.Output())
		if err == nil || !strings.Contains(err.Error(), "the data of 1 volume of claims") ||
			!strings.Contains(err.Error(), "leave --delete-volumes") {
			t.Errorf("without consent: %v", err)
		}
		if _, err := os.Stat(volume); err != nil {
			t.Error("data was deleted without consent:", err)
		}
		if err := leave(t.Context(), p, leaving{force: true, volumes: true}, t.Output()); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(p.root); err == nil {
		t.Error("it is still there")
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
	ended := startHolder(t, p, `mkdir -p "$1" && echo x >"$1/file"`, late)
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

// startHolder starts a process that is told to end by a signal, and then executes a line of shell
// with an argument. It returns when the process holds the supervisor's lock.
func startHolder(t *testing.T, p place, atEnd, arg string) <-chan error {
	t.Helper()
	process := exec.Command("flock", "--no-fork", p.supervisor(), "sh", "-c",
		`trap '`+atEnd+`; exit 0' TERM; echo $$ >"$0"; echo holds; read line`, p.supervisor(), arg)
	out, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := process.StdinPipe() // it reads until it is told to end, or the test has
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if pid, e := holder(p.supervisor()); err != nil || e != nil || pid != process.Process.Pid {
		t.Fatalf("the process said %q, %v; the lock is held by %d, %v", said, err, pid, e)
	}
	ended := make(chan error, 1)
	go func() {
		defer in.Close()
		ended <- process.Wait()
	}()
	return ended
}
