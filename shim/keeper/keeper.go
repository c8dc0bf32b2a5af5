// Package keeper talks to the keeper: a tiny process that holds copies of the
// important descriptors of shim and daemon, and starts each of them again when it
// dies. Because it is neither of the two, both may be killed in the same instant and
// still find pidfds, FIFOs and terminals where they left them.
//
// The keeper knows nothing of containers. It holds up to MaxFDs descriptors and a
// short text under a key, and supervises programs by name:
//
//	l, _ := keeper.Listen(dir)            // or keeper.Dial(dir) if it runs already
//	_ = keeper.Spawn(binary, l)
//	k, _ := keeper.Dial(dir)
//	_ = k.Put("c/web", "pid out err", pidfd, out, err)
//	meta, files, _ := k.Get("c/web")
//	pid, _ := k.Supervise(keeper.Program{Name: "shim/node", …})
//
// A program gets the descriptors held under "pass/<name>" as 3, 4, … when it starts.
// If the keeper itself is killed nothing is lost: the daemon starts another, and both
// put their descriptors there again (Done tells when).
//
// The keeper never blocks, so it answers at once. If it has not answered within Timeout, it counts
// as hung: the call fails with ErrHung and the connection is closed, because a late answer would be
// taken for the answer to the next call. The daemon then kills the keeper and starts another
// (Start).
package keeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/sock"
)

// Limits of the keeper; see process/keeper.h.
const (
	MaxKey    = 191 // bytes
	MaxMeta   = 63  // bytes
	MaxFDs    = 8
	maxPacket = 64 << 10
)

// SocketName is the keeper's socket in its directory.
const SocketName = "keeper.sock"

// ProcessName is the argv[0] that makes the shim's binary the keeper.
const ProcessName = "coracle-keeper"

// Timeout is how long a call waits for the keeper's answer. Time while the machine is suspended
// does not count.
const Timeout = 2 * time.Second

// Kinds of error, for errors.Is.
var (
	ErrNotFound = errors.New("not held by the keeper")
	ErrGone     = errors.New("keeper is gone")
	ErrHung     = errors.New("keeper does not answer")
)

// Features of a keeper. A keeper of an older version may lack some.
const (
	FeatureStatus   = "status"    // Status returns everything
	FeatureStay     = "stay"      // a program that exits with ExitStay is not started again
	FeatureBoundLog = "bound-log" // Program.BoundLog
	FeatureExit     = "exit"      // Exit
)

type op uint32

const (
	opPut op = iota + 1
	opGet
	opDel
	opList
	opSupervise
	opForget
	opWho
	opQuit
	opInfo
	opStatus
	opExit
)

const (
	flagPrefix   = 1
	flagAdopt    = 2
	flagBoundLog = 4
)

// Keeper is a connection to the keeper. Its methods may be called concurrently.
type Keeper struct {
	conn  *net.UnixConn
	watch *os.File // the connection once more: Watch must not hold conn's read lock

	version  int
	features []string
	pid      int

	done  chan struct{}
	once  sync.Once
	cause error // why done is closed

	mu  sync.Mutex // one request at a time
	buf []byte
}

// Dial connects to the keeper in dir. It fails with ErrGone if none runs there, and with ErrHung if
// the keeper does not answer.
func Dial(dir string) (*Keeper, error) {
	c, err := dial(dir, time.Now().Add(Timeout))
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("dial keeper: %w: %w", ErrGone, err)
	}
	if errors.Is(err, syscall.EAGAIN) {
		return nil, fmt.Errorf("dial keeper: %w: %w", ErrHung, err)
	}
	if err != nil {
		return nil, fmt.Errorf("dial keeper: %w", err)
	}
	w, err := c.File() // non-blocking, because c is
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial keeper: %w", err), c.Close())
	}
	k := &Keeper{conn: c, watch: w, done: make(chan struct{}), buf: make([]byte, 4096)}
	if err := k.greet(); err != nil {
		k.Close()
		return nil, fmt.Errorf("dial keeper: %w", err)
	}
	return k, nil
}

// dial tries again until the deadline while the socket's queue is full (EAGAIN), because the keeper
// may lack descriptors.
func dial(dir string, deadline time.Time) (*net.UnixConn, error) {
	for {
		c, err := sock.Dial(dir, SocketName, "unixpacket")
		if !errors.Is(err, syscall.EAGAIN) || time.Until(deadline) <= 0 {
			return c, err
		}
		time.Sleep(dialPause)
	}
}

const dialPause = 20 * time.Millisecond

// greet asks for version and features. Keepers before version 1 do not know this request.
func (k *Keeper) greet() error {
	version, body, _, err := k.call(request{op: opInfo, strings: []string{"info"}})
	if errors.Is(err, syscall.ENOSYS) {
		return nil
	}
	if err != nil {
		return err
	}
	parts := strings.Split(strings.TrimSuffix(string(body), "\x00"), "\x00")
	if k.pid, err = strconv.Atoi(parts[0]); err != nil {
		return fmt.Errorf("parse pid of keeper: %w", err)
	}
	k.version, k.features = int(version), parts[1:]
	return nil
}

// Version is the version of the keeper's protocol, 0 for a keeper that does not report it.
func (k *Keeper) Version() int { return k.version }

// Has reports whether the keeper has a feature.
func (k *Keeper) Has(feature string) bool { return slices.Contains(k.features, feature) }

// PID is the keeper's pid, 0 if the keeper does not report it (version 0).
func (k *Keeper) PID() int { return k.pid }

// Ping returns when the keeper has answered. Without an answer before ctx's deadline, or within
// Timeout if ctx has none, it fails with ErrHung. It then closes the connection, as all calls do.
func (k *Keeper) Ping(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(Timeout)
	}
	_, _, _, err := k.callUntil(deadline, request{op: opInfo, strings: []string{"info"}})
	if errors.Is(err, syscall.ENOSYS) {
		return nil // an answer of version 0
	}
	return err
}

// Close disconnects; the keeper goes on holding everything.
func (k *Keeper) Close() error {
	k.lose(fmt.Errorf("%w: %w", ErrGone, os.ErrClosed))
	return nil
}

// Done is closed when a call or Watch has found the keeper gone or hung, or by Close.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Err says why Done is closed: ErrHung, or ErrGone, which is also os.ErrClosed after Close. It is
// nil while Done is open.
func (k *Keeper) Err() error {
	select {
	case <-k.done:
		return k.cause
	default:
		return nil
	}
}

// lose closes the connection. It returns the first cause.
func (k *Keeper) lose(cause error) error {
	k.once.Do(func() {
		k.cause = cause
		_ = k.watch.Close() // also ends Watch
		_ = k.conn.Close()
		close(k.done)
	})
	return k.cause
}

// Put holds copies of files (1 to MaxFDs) and meta under key, instead of what was
// held there.
func (k *Keeper) Put(key, meta string, files ...*os.File) error {
	_, _, got, err := k.call(request{op: opPut, strings: []string{key, meta}, files: files})
	closeAll(got)
	return err
}

// Get returns copies of what is held under key.
func (k *Keeper) Get(key string) (meta string, files []*os.File, err error) {
	_, body, files, err := k.call(request{op: opGet, strings: []string{key}})
	if err != nil {
		return "", nil, err
	}
	return strings.TrimSuffix(string(body), "\x00"), files, nil
}

// Del drops what is held under key.
func (k *Keeper) Del(key string) error {
	_, _, _, err := k.call(request{op: opDel, strings: []string{key}})
	return err
}

// DelPrefix drops what is held under all keys that begin with prefix.
func (k *Keeper) DelPrefix(prefix string) error {
	_, _, _, err := k.call(request{op: opDel, flags: flagPrefix, strings: []string{prefix}})
	return err
}

// List returns the keys that begin with prefix.
func (k *Keeper) List(prefix string) ([]string, error) {
	var keys []string
	for from := uint32(0); ; {
		next, body, _, err := k.call(request{op: opList, arg: from, strings: []string{prefix}})
		if err != nil {
			return nil, err
		}
		for s := range strings.SplitSeq(string(body), "\x00") {
			if s != "" {
				keys = append(keys, s)
			}
		}
		if next == 0 {
			return keys, nil
		}
		from = next
	}
}

// Exit returns how a process ended that became the keeper's child when its parent, a shim, died.
// startTime is field 22 of its /proc/<pid>/stat. Exit returns ErrNotFound if the process runs, was
// not the keeper's child, or if 4096 others have ended since.
func (k *Keeper) Exit(pid int, startTime uint64) (unix.WaitStatus, error) {
	if !k.Has(FeatureExit) {
		return 0, ErrNotFound
	}
	status, _, _, err := k.call(request{op: opExit, arg: uint32(pid), strings: []string{strconv.FormatUint(startTime, 10)}})
	return unix.WaitStatus(status), err
}

// Quit ends the keeper, which drops all it holds, and returns when it is gone.
func (k *Keeper) Quit() error {
	_, _, _, err := k.call(request{op: opQuit, strings: []string{""}})
	if err != nil {
		return err
	}
	defer time.AfterFunc(Timeout, func() { _ = k.lose(ErrHung) }).Stop()
	k.Watch()
	if errors.Is(k.Err(), ErrHung) {
		return k.Err()
	}
	return nil
}

// Watch returns when the keeper is gone, a call has found it hung, or k is closed.
func (k *Keeper) Watch() {
	if rc, err := k.watch.SyscallConn(); err == nil {
		_ = rc.Read(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			n, err := unix.Poll(p, 0)
			return err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
		})
	}
	_ = k.lose(ErrGone)
}

type request struct {
	op          op
	flags, arg  uint32
	nargs, nenv int
	strings     []string
	files       []*os.File
}

func (r request) encode() ([]byte, error) {
	b := make([]byte, 0, 256)
	b = binary.NativeEndian.AppendUint32(b, uint32(r.op))
	b = binary.NativeEndian.AppendUint32(b, r.flags)
	b = binary.NativeEndian.AppendUint32(b, r.arg)
	b = binary.NativeEndian.AppendUint16(b, uint16(r.nargs))
	b = binary.NativeEndian.AppendUint16(b, uint16(r.nenv))
	for _, s := range r.strings {
		if strings.IndexByte(s, 0) >= 0 {
			return nil, fmt.Errorf("ask keeper: string %q: %w", s, syscall.EINVAL)
		}
		b = append(append(b, s...), 0)
	}
	if len(b) > maxPacket {
		return nil, fmt.Errorf("ask keeper: %d bytes: %w", len(b), syscall.EMSGSIZE)
	}
	return b, nil
}

// call sends one request and waits for its answer.
func (k *Keeper) call(r request) (value uint32, body []byte, files []*os.File, err error) {
	return k.callUntil(time.Time{}, r)
}

// callUntil is call with a deadline other than Timeout, which starts when it is this call's turn.
func (k *Keeper) callUntil(deadline time.Time, r request) (value uint32, body []byte, files []*os.File, err error) {
	b, err := r.encode()
	if err != nil {
		return 0, nil, nil, err
	}
	fds := make([]int, 0, MaxFDs)
	for _, f := range r.files {
		if f == nil {
			return 0, nil, nil, fmt.Errorf("ask keeper: nil file: %w", syscall.EINVAL)
		}
		fd, release, err := borrow(f)
		if err != nil {
			return 0, nil, nil, fmt.Errorf("ask keeper: %w", err)
		}
		defer release()
		fds = append(fds, fd)
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.op == opList && len(k.buf) < maxPacket {
		k.buf = make([]byte, maxPacket)
	}
	if err := k.Err(); err != nil {
		return 0, nil, nil, err
	}
	if deadline.IsZero() {
		deadline = time.Now().Add(Timeout)
	}
	if err := k.conn.SetDeadline(deadline); err != nil {
		return 0, nil, nil, k.lost(err)
	}
	if _, _, err := k.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return 0, nil, nil, k.lost(err)
	}
	control := make([]byte, unix.CmsgSpace(4*MaxFDs))
	n, cn, flags, err := k.receive(control)
	if err != nil || n < 8 {
		return 0, nil, nil, k.lost(err)
	}
	files, err = received(control[:cn])
	if err != nil {
		return 0, nil, nil, fmt.Errorf("ask keeper: %w", err)
	}
	if flags&unix.MSG_CTRUNC != 0 { // this process had no free descriptor
		closeAll(files)
		return 0, nil, nil, fmt.Errorf("ask keeper about %q: %w", r.strings[0], syscall.EMFILE)
	}
	if code := int32(binary.NativeEndian.Uint32(k.buf)); code != 0 {
		closeAll(files)
		errno := syscall.Errno(-code)
		if errno == syscall.ENOENT {
			return 0, nil, nil, fmt.Errorf("%s: %w", r.strings[0], ErrNotFound)
		}
		return 0, nil, nil, fmt.Errorf("ask keeper about %q: %w", r.strings[0], errno)
	}
	body = append([]byte(nil), k.buf[8:n]...)
	return binary.NativeEndian.Uint32(k.buf[4:]), body, files, nil
}

// receive reads an answer. An answer that has arrived counts even after the deadline: this process
// may not have run for a while (SIGSTOP, no CPU), which is not the keeper's fault.
func (k *Keeper) receive(control []byte) (n, cn, flags int, err error) {
	n, cn, flags, _, err = k.conn.ReadMsgUnix(k.buf, control)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, cn, flags, err
	}
	var ready bool
	rc, rerr := k.conn.SyscallConn()
	if rerr == nil {
		rerr = rc.Control(func(fd uintptr) {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			ready = err == nil && n > 0
		})
	}
	if rerr != nil || !ready {
		return 0, 0, 0, err
	}
	if err := k.conn.SetDeadline(time.Time{}); err != nil {
		return 0, 0, 0, err
	}
	n, cn, flags, _, err = k.conn.ReadMsgUnix(k.buf, control)
	return n, cn, flags, err
}

// lost closes the connection after a call has failed.
func (k *Keeper) lost(err error) error {
	switch {
	case err == nil: // a short answer, or end of file
		return k.lose(ErrGone)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return k.lose(ErrHung)
	}
	return k.lose(fmt.Errorf("%w: %w", ErrGone, err))
}

// borrow gives f's descriptor until release, without making it blocking as Fd would.
func borrow(f *os.File) (fd int, release func(), err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, nil, err
	}
	if cerr := rc.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 3) }); cerr != nil {
		return -1, nil, os.ErrClosed // it has no other cause
	}
	if err != nil {
		return -1, nil, err
	}
	return fd, func() { unix.Close(fd) }, nil
}

func received(control []byte) ([]*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "held"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
