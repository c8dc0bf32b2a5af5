package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
)

// conversation is the socket between a child that runs a plan and its maker.
type conversation struct {
	ours, childs int
	buf          []byte
	rest         []byte // what came after the head of the last report
}

// Sizes of reports in bytes: struct report of zygote.h, and one with times, plan.ReportTrace.
const reportHead, reportTraced = 16, 32 << 10

func newConversation() (*conversation, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	return &conversation{ours: fds[0], childs: fds[1], buf: make([]byte, reportHead)}, nil
}

// limitWaits makes next check the child at regular intervals; see stopped.
func (c *conversation) limitWaits(d time.Duration) error {
	t := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.ours, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &t); err != nil {
		return fmt.Errorf("limit waits for the new process: %w", err)
	}
	return nil
}

// next returns the child's next report, struct report of zygote.h. io.ErrUnexpectedEOF means that
// the child has ended. There is no time limit, but a stopped child is an error. pid is the process
// to check for that; 0 for none.
func (c *conversation) next(pid int) (kind, arg uint32, errno unix.Errno, err error) {
	b := c.buf
	for stopped := 0; ; {
		n, err := unix.Read(c.ours, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			if pid == 0 || !stuck.Stopped(pid) {
				stopped = 0
				continue
			}
			const looks = 2 // it may have been continued in between
			if stopped++; stopped < looks {
				continue
			}
			return 0, 0, 0, fmt.Errorf("%s, has been stopped", stuck.Describe(pid))
		}
		if err != nil {
			return 0, 0, 0, fmt.Errorf("hear from the new process: %w", err)
		}
		if n < reportHead {
			return 0, 0, 0, io.ErrUnexpectedEOF
		}
		c.rest = b[reportHead:n]
		le := binary.LittleEndian
		return le.Uint32(b[:]), le.Uint32(b[4:]), unix.Errno(le.Uint32(b[8:])), nil
	}
}

// goOn lets a child that waits go on.
func (c *conversation) goOn() error {
	if err := unix.Send(c.ours, []byte{1}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("tell the new process to go on: %w", err)
	}
	return nil
}

func (c *conversation) closeChildEnd() {
	if c.childs >= 0 {
		_ = unix.Close(c.childs)
		c.childs = -1
	}
}

func (c *conversation) close() {
	c.closeChildEnd()
	_ = unix.Close(c.ours)
}

// shut ends the conversation from another goroutine.
func (c *conversation) shut() { _ = unix.Shutdown(c.ours, unix.SHUT_RDWR) }
