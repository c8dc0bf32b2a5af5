package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/internal/stuck"
	"github.com/coracle-project/coracle/runtime/plan"
)

// conversation is the socket between a child that runs a plan and its maker.
type conversation struct {
	plan         *plan.Plan
	ours, childs int
	buf          []byte
	rest         []byte // what came after the head of the last report
	sender       []byte // room for the last report's sender, nil if no one needs it

	mu     sync.Mutex
	pids   []int // of the processes that run the plan and are not reaped yet; the last one goes on
	killed bool
}

// Sizes of reports in bytes: struct report of zygote.h, and one with times, plan.ReportTrace.
const reportHead, reportTraced = 16, 32 << 10

// errKilled means that a process has been killed and has not ended.
var errKilled = errors.New("it has been killed, and has not ended")

// newConversation makes the socket for a plan. At regular intervals, next looks whether the child
// hangs; see hangs.
func newConversation(p *plan.Plan, interval time.Duration) (*conversation, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	c := &conversation{plan: p, ours: fds[0], childs: fds[1], buf: make([]byte, reportHead)}
	wait := unix.NsecToTimeval(interval.Nanoseconds())
	if err := unix.SetsockoptTimeval(c.ours, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		c.close()
		return nil, fmt.Errorf("limit waits for the new process: SO_RCVTIMEO: %w", err)
	}
	if p.Forks() {
		if err := unix.SetsockoptInt(c.ours, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
			c.close()
			return nil, fmt.Errorf("learn who reports: SO_PASSCRED: %w", err)
		}
		c.sender = make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	}
	return c, nil
}

// with notes the process that has just started to run the plan.
func (c *conversation) with(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pids = append(c.pids, pid)
	if c.killed { // and this one was not known then
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// kill ends the processes that run the plan. next goes on to return what they have reported, and an
// error soon after if they do not end.
func (c *conversation) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed = true
	for _, pid := range c.pids { // children that are not reaped, so the numbers are still their own
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// reapFirst reaps the process that began, which ends by itself when another one goes on.
func (c *conversation) reapFirst() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := stuck.Reap(c.pids[0], stuck.Patience)
	c.pids = c.pids[1:]
	return err
}

// end kills and reaps all processes that run the plan, also one that has not been heard of: a
// process that was killed between its fork and its end has started another one, which reports first
// of all. If that was killed, too, or cannot report, it is known by its process group only (see
// plan.Fork). A process that is not reaped would keep the PID namespace that it is in from ending
// (zap_pid_ns_processes).
func (c *conversation) end(most time.Duration) error {
	c.kill()
	if len(c.pids) == 0 {
		return nil
	}
	first := c.pids[0]
	grouped := leads(first) // for good: it has been killed
	if grouped {
		_ = unix.Kill(-first, unix.SIGKILL)
	}
	for {
		if _, _, _, err := c.next(); err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var left error
	for _, pid := range c.pids[1:] {
		left = errors.Join(left, stuck.Reap(pid, most))
	}
	// Last, so that the group's number stays its own until all are reaped.
	if grouped {
		left = errors.Join(left, stuck.ReapGroup(first, most))
	} else {
		left = errors.Join(left, stuck.Reap(first, most))
	}
	c.pids = nil
	return left
}

// leads reports whether a child that is not reaped leads a process group. Before it forks, it does.
func leads(pid int) bool {
	group, err := unix.Getpgid(pid)
	return err == nil && group == pid
}

// next returns the child's next report, struct report of zygote.h; of plan.ReportProcess, arg is
// the pid of the process that now goes on. io.ErrUnexpectedEOF means that the child has ended.
// There is no time limit, but a child that is stopped, or has been killed and does not end, is an
// error.
func (c *conversation) next() (kind, arg uint32, errno unix.Errno, err error) {
	b := c.buf
	for stopped := 0; ; {
		n, sender, _, _, err := unix.Recvmsg(c.ours, b, c.sender, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			if err := c.hangs(&stopped); err != nil {
				return 0, 0, 0, err
			}
			continue
		}
		if err != nil {
			return 0, 0, 0, fmt.Errorf("hear from the new process: %w", err)
		}
		if n < reportHead {
			return 0, 0, 0, io.ErrUnexpectedEOF
		}
		c.rest = b[reportHead:n]
		le := binary.LittleEndian
		kind, arg = le.Uint32(b[:]), le.Uint32(b[4:])
		if kind == plan.ReportProcess {
			pid, err := senderOf(c.sender[:sender])
			if err != nil {
				return 0, 0, 0, err
			}
			c.with(pid)
			arg = uint32(pid)
		}
		return kind, arg, unix.Errno(le.Uint32(b[8:])), nil
	}
}

// reports says what a maker does about each kind of report, plan.Report…; nothing about kinds that
// it does not list.
type reports map[uint32]func(arg int, errno unix.Errno) error

// answered are the kinds of reports after which the child waits for goOn.
var answered = map[uint32]bool{plan.ReportPoint: true, plan.ReportCopyUp: true, plan.ReportTarget: true, plan.ReportListener: true}

// handle does what is due about the child's next report, and lets a child that waits go on. kind is
// 0 if there is no report; err is that of next then. A step that is not of the plan is an error:
// what it needs is not there.
func (c *conversation) handle(on reports) (kind uint32, err error) {
	kind, arg, errno, err := c.next()
	if err != nil {
		return 0, err
	}
	if answered[kind] && !c.plan.Asks(kind, arg) {
		return kind, fmt.Errorf("the new process reports a step that its plan does not have: kind %d, %d", kind, arg)
	}
	if do := on[kind]; do != nil {
		if err := do(int(arg), errno); err != nil {
			return kind, err
		}
	}
	if answered[kind] {
		return kind, c.goOn()
	}
	return kind, nil
}

// hangs says why the child counts as hung after one more wait, if it does. stopped is how often it
// has been found stopped.
func (c *conversation) hangs(stopped *int) error {
	c.mu.Lock()
	killed, pids := c.killed, c.pids
	c.mu.Unlock()
	if len(pids) == 0 {
		return nil
	}
	pid := pids[len(pids)-1]
	if killed {
		return fmt.Errorf("%s: %w", stuck.Describe(pid), errKilled)
	}
	if !stuck.Stopped(pid) {
		*stopped = 0
		return nil
	}
	const looks = 2 // it may have been continued in between
	if *stopped++; *stopped < looks {
		return nil
	}
	return fmt.Errorf("%s, has been stopped", stuck.Describe(pid))
}

// senderOf returns the pid that the kernel attached to a message, unix(7), as this process sees it:
// the sender may see another one.
func senderOf(oob []byte) (int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return 0, fmt.Errorf("learn who reports: %d control messages: %w", len(msgs), err)
	}
	cred, err := unix.ParseUnixCredentials(&msgs[0])
	if err != nil {
		return 0, fmt.Errorf("learn who reports: %w", err)
	}
	return int(cred.Pid), nil
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
