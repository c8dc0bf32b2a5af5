package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// gateVariable names the descriptor of a gate in the environment. If "coracle up" was given flags
// for the server, it starts the server first. The server checks the flags and writes to the gate, a
// unix socket, what is wrong with them, or "ok" and a newline. Then it waits for a byte. If the
// socket is closed instead, the start is cancelled.
const gateVariable = "CORACLE_START_GATE"

// gateFlag is given with the gate: a server of a release without gates refuses it.
const gateFlag = "at-gate"

// exitRefused is the exit code of a server that does not start: it has said on its gate why, or the
// start was cancelled. Its supervisor ends with it.
const exitRefused = 79

var errGivenUp = errors.New("the start was cancelled")

// gate is where the server waits until it may start; nil is always open.
type gate struct {
	conn net.Conn
	said bool
}

// inheritedGate returns the gate that the environment names, nil if it names none. This process has
// it only once: another that takes its place starts at once.
func inheritedGate() (*gate, error) {
	text := os.Getenv(gateVariable)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(gateVariable); err != nil {
		return nil, err
	}
	fd, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("$%s %q is no descriptor", gateVariable, text)
	}
	file := os.NewFile(uintptr(fd), "gate")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("$%s: %w", gateVariable, err)
	}
	return &gate{conn: conn}, nil
}

// pass says that the flags are good, and returns when the server may start.
func (g *gate) pass(ctx context.Context) error {
	if g == nil {
		return nil
	}
	defer func() { _ = g.conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = g.conn.Close() })()
	g.said = true
	if _, err := g.conn.Write([]byte("ok\n")); err != nil {
		return fmt.Errorf("say that the flags are good: %w", err)
	}
	if _, err := bufio.NewReader(g.conn).ReadByte(); err != nil {
		return errGivenUp
	}
	return nil
}

// refuse says what is wrong, if nothing was said before, and whether it has.
func (g *gate) refuse(wrong error) bool {
	if g == nil || g.said {
		return false
	}
	defer func() { _ = g.conn.Close() }()
	_, err := g.conn.Write([]byte(wrong.Error()))
	return err == nil
}
