package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newGate has the environment name a gate, and returns its other end.
func newGate(t *testing.T) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(gateVariable, strconv.Itoa(fds[1]))
	file := os.NewFile(uintptr(fds[0]), "starter")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}

func TestGateOpens(t *testing.T) {
	starter := newGate(t)
	g, err := inheritedGate()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := inheritedGate(); again != nil || err != nil {
		t.Errorf("a process that takes this one's place has a gate: %v, %v", again, err)
	}
	passed := make(chan error)
	go func() { passed <- g.pass(t.Context()) }()
	said := make([]byte, 8)
	if n, err := starter.Read(said); err != nil || string(said[:n]) != "ok\n" {
		t.Errorf("it says %q, %v", said[:n], err)
	}
	select {
	case err := <-passed:
		t.Errorf("it has passed before it may: %v", err)
	default:
	}
	if _, err := starter.Write([]byte{0}); err != nil {
		t.Error(err)
	}
	if err := <-passed; err != nil {
		t.Error(err)
	}
	if g.refuse(errors.New("late")) {
		t.Error("an error of the server was said to the starter")
	}
}

// A start that is given up does not go on, nor does one whose starter was killed.
func TestGateStaysClosed(t *testing.T) {
	starter := newGate(t)
	g, err := inheritedGate()
	if err != nil {
		t.Fatal(err)
	}
	starter.Close()
	if err := g.pass(t.Context()); err == nil {
		t.Error("it has passed")
	}
	newGate(t)
	if g, err = inheritedGate(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := g.pass(ctx); err == nil {
		t.Error("it has passed when it was to end")
	}
}

// Bad flags are said on the gate, those that no command has gets as far as to check, too.
func TestGateRefuses(t *testing.T) {
	for _, flags := range [][]string{{"--port", "x"}, {"--port", "30001"}} {
		starter := newGate(t)
		before := os.Args
		always := []string{"coracle-kube", "server", "--" + gateFlag, "--node-name", "n", "--node-ip", "127.0.0.1", "--root", t.TempDir()}
		os.Args = append(always, flags...)
		code := run()
		os.Args = before
		said, err := io.ReadAll(starter)
		if code != exitRefused || err != nil || !strings.Contains(string(said), flags[1]) {
			t.Errorf("%v: it ended with %d and said %q, %v", flags, code, said, err)
		}
	}
	for _, text := range []string{"x", "-1", "99999", "65000"} {
		t.Setenv(gateVariable, text)
		if g, err := inheritedGate(); err == nil {
			t.Errorf("%q is a gate: %v", text, g)
		}
	}
}
