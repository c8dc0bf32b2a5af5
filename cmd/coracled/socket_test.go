package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "c.sock")
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != os.ModeSocket|0o660 {
		t.Errorf("mode %v", st.Mode())
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestListenReplacesAStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestListenSparesOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.sock")
	alive, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.Close() }()
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("live socket: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(file); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("file: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := listen(filepath.Join(file, "x")); err == nil {
		t.Error("below a file")
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify("READY=1"); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "n"), "@coracle-test-notify-" + filepath.Base(t.TempDir())} {
		address := &net.UnixAddr{Name: strings.Replace(name, "@", "\x00", 1), Net: "unixgram"}
		l, err := net.ListenUnixgram("unixgram", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		if err := notify("READY=1"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		n, err := l.Read(buf)
		if err != nil || string(buf[:n]) != "READY=1" {
			t.Errorf("%q, %v", buf[:n], err)
		}
		_ = l.Close()
		if err := notify("READY=1"); err == nil {
			t.Error("no one listens, and no one is told")
		}
	}
}
