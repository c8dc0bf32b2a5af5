package logfile

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("LOGFILE_TEST_PATH"); path != "" {
		program(path)
	}
	os.Exit(m.Run())
}

// program logs LINES lines to its log, and panics if there were any.
func program(path string) {
	w, err := Stderr(path)
	if err != nil {
		panic(err)
	}
	line := strings.Repeat("x", 999)
	lines, _ := strconv.Atoi(os.Getenv("LOGFILE_TEST_LINES"))
	for range lines {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w, "ready")
	panic("the end")
}

func start(t *testing.T, path string, stderr *os.File, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), append(env, "LOGFILE_TEST_PATH="+path)...)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	return cmd
}

// inherited opens a log as the daemon does for the keeper.
func inherited(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func sizes(t *testing.T, path string) (now, before int64) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if old, err := os.Stat(aside(path, 1)); err == nil {
		before = old.Size()
	}
	if left, err := os.Stat(aside(path, 0)); err == nil {
		t.Errorf("%s is left, %d bytes", left.Name(), left.Size())
	}
	return st.Size(), before
}

// A program logs much and panics, repeatedly, with the file that its keeper opened once. Both files
// stay within their limits, and the trace is in the log.
func TestStderrIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := inherited(t, path)
	for range 3 {
		_ = start(t, path, f, "LOGFILE_TEST_LINES=6000").Run() // it panics
		now, before := sizes(t, path)
		if now == 0 || now > memoryLimit+1<<16 || before < memoryLimit || before > memoryLimit+1<<16 {
			t.Errorf("log of %d bytes, and %d in the previous one", now, before)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text[max(0, len(text)-10_000):]), "panic: the end") {
		t.Errorf("no trace of the panic: %v", err)
	}
	// A log that became too large only by traces is set aside at the next start.
	if err := os.Truncate(path, memoryLimit+1<<20); err != nil {
		t.Fatal(err)
	}
	_ = start(t, path, f).Run() // it panics
	if now, before := sizes(t, path); now > 10_000 || before != memoryLimit+1<<20 {
		t.Errorf("log of %d bytes, and %d in the previous one", now, before)
	}
}

// The next start uses up the files of a program that was killed while it set its log aside.
func TestStderrOfKilledProgram(t *testing.T) {
	full := strings.Repeat(strings.Repeat("y", 999)+"\n", memoryLimit/1000+1)
	for name, left := range map[string][2]string{ // the copy, and the file set aside earlier
		"copying":           {full[:1<<20], ""},
		"copied":            {full, ""},
		"renamed":           {"", full},
		"with an older one": {full[:1], full},
	} {
		path := filepath.Join(t.TempDir(), "log")
		f := inherited(t, path)
		if _, err := f.WriteString(full); err != nil {
			t.Fatal(err)
		}
		for i, text := range left {
			if text == "" {
				continue
			}
			if err := os.WriteFile(aside(path, i), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_ = start(t, path, f).Run() // it panics
		if now, before := sizes(t, path); now > 10_000 || before != int64(len(full)) {
			t.Errorf("killed while %s: log of %d bytes, and %d in the previous one", name, now, before)
		}
	}
}

// The log was removed, but the keeper has it open: the next start uses a new file.
func TestStderrWasRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := inherited(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	_ = start(t, path, f).Run() // it panics
	text, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(text), "ready\npanic: the end") {
		t.Errorf("%q, %v", text, err)
	}
}

// Standard error that is not the log is left alone, however large it is.
func TestStderrIsAnotherFile(t *testing.T) {
	dir := t.TempDir()
	f := inherited(t, filepath.Join(dir, "mine"))
	_ = start(t, filepath.Join(dir, "log"), f, "LOGFILE_TEST_LINES=5000").Run() // it panics
	if st, err := f.Stat(); err != nil || st.Size() < 5_000_000 {
		t.Errorf("size %v, %v", st.Size(), err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files %v, %v", files, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := start(t, filepath.Join(dir, "mine"), w)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if got, err := bufio.NewReader(r).ReadString('\n'); err != nil || got != "ready\n" {
		t.Errorf("pipe: %q, %v", got, err)
	}
	_, _ = io.Copy(io.Discard, r)
	_ = cmd.Wait() // it panics
}

// The file system is full: a log that cannot be set aside is dropped.
func TestLogOnFullFileSystem(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := open(path, 1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := syscall.Mkdir(aside(path, 0), 0o700); err != nil { // simulates it: no copy can be made
		t.Fatal(err)
	}
	for range 1000 {
		fmt.Fprintln(l, strings.Repeat("x", 99))
		if st, err := os.Stat(path); err != nil || st.Size() > 3000 {
			t.Fatalf("log of %d bytes, %v", st.Size(), err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "bytes of log were dropped") {
		t.Errorf("%q, %v", text, err)
	}
}
