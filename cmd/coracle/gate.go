package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// gateVariable names, in the environment of the cluster process, the descriptor of its end of a
// gate.
const gateVariable = "CORACLE_START_GATE"

// gateFlag says to the cluster process that it has a gate. One of an earlier release, which would
// start without waiting, refuses the flag instead.
const gateFlag = "--at-gate"

// exitRefused is the exit code of a cluster process that has said on its gate why it does not
// start, or whose gate was closed. Its supervisor ends with it.
const exitRefused = 79

// mostSaid bounds what is read of a gate.
const mostSaid = 64 << 10

// gate is where a new cluster process waits, after it has checked its flags, until it may begin. A
// separate process for the check would cost a tenth of a second: the program needs that long before
// it reads its flags.
type gate struct {
	conn *net.UnixConn
	far  *os.File // for the supervisor
	// order and ordered are a pipe's ends. What is written to it tells the supervisor, which has
	// the latter, that the gate was opened.
	order, ordered *os.File
}

func newGate() (*gate, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a gate: %w", err)
	}
	near, far := os.NewFile(uintptr(fds[0]), "gate"), os.NewFile(uintptr(fds[1]), "gate")
	defer func() { _ = near.Close() }()
	conn, err := net.FileConn(near)
	if err != nil {
		return nil, errors.Join(err, far.Close())
	}
	ordered, order, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a gate: %w", err), conn.Close(), far.Close())
	}
	return &gate{conn: conn.(*net.UnixConn), far: far, order: order, ordered: ordered}, nil
}

// errSilent is for a process that ended before it has said anything.
var errSilent = errors.New("it has said nothing")

// badFlags is what a cluster process says is wrong with its flags.
type badFlags string

func (r badFlags) Error() string { return string(r) }

// await returns nil when the flags are good, badFlags if they are not. Nothing but the process may
// have the far end open.
func (g *gate) await(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = g.conn.CloseRead() })()
	r := bufio.NewReader(io.LimitReader(g.conn, mostSaid))
	said, err := r.ReadString('\n')
	if said == "ok\n" {
		return nil
	}
	if err == nil {
		var rest []byte
		rest, err = io.ReadAll(r)
		said += string(rest)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case said == "" || err != nil && !errors.Is(err, io.EOF):
		return errors.Join(errSilent, err)
	}
	return badFlags(strings.TrimSpace(said))
}

// open lets the process begin. The caller notices elsewhere if the process has ended meanwhile.
func (g *gate) open() {
	_, _ = g.order.Write([]byte{0})
	_ = g.order.Close()
	_, _ = g.conn.Write([]byte{0})
	_ = g.conn.Close()
}

// close cancels the start.
func (g *gate) close() {
	_ = g.far.Close()
	_ = g.ordered.Close()
	_ = g.order.Close()
	_ = g.conn.Close()
}
