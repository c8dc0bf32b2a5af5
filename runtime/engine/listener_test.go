package engine

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSeccompAgentThatHangs: an agent that accepts no connections, or does not read, ends the
// creation of a process with an error. It waited for ever.
func TestSeccompAgentThatHangs(t *testing.T) {
	const patience = 100 * time.Millisecond
	path := filepath.Join(t.TempDir(), "agent")
	agent, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(agent)
	if err := errors.Join(unix.Bind(agent, &unix.SockaddrUnix{Name: path}), unix.Listen(agent, 0)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		message int // bytes
		want    error
	}{
		{"takes the message without reading", 1 << 10, nil}, // it is in the backlog from now on
		{"accepts no connection", 1 << 10, unix.EAGAIN},
	} {
		delivered(t, c.name, path, make([]byte, c.message), patience, c.want)
	}
	conn, _, err := unix.Accept4(agent, unix.SOCK_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(conn)
	delivered(t, "does not read", path, make([]byte, 8<<20), patience, unix.EAGAIN)
}

func delivered(t *testing.T, name, path string, message []byte, patience time.Duration, want error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- deliver(path, message, []int{0}, patience) }()
	select {
	case err := <-result:
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("an agent that %s holds up the caller", name)
	}
}
