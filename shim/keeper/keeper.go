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
package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

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

// Kinds of error, for errors.Is.
var (
	ErrNotFound = errors.New("not held by the keeper")
	ErrGone     = errors.New("keeper is gone")
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
)

const (
	flagPrefix = 1
	flagAdopt  = 2
)

// Keeper is a connection to the keeper. Its methods may be called concurrently.
type Keeper struct {
	conn  *net.UnixConn
	watch *os.File // the connection once more: Watch must not hold conn's read lock
	done  chan struct{}
	once  sync.Once

	mu  sync.Mutex // one request at a time
	buf []byte
}

// Listen makes the keeper's socket in dir, which must be private to root.
func Listen(dir string) (*net.UnixListener, error) {
	return sock.Listen(dir, SocketName, "unixpacket")
}

// Spawn starts a keeper that serves l. The keeper is no child of the caller and
// outlives it.
func Spawn(binary string, l *net.UnixListener) error {
	f, err := l.File()
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer f.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	defer null.Close()
	p, err := os.StartProcess(binary, []string{ProcessName}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, f},
	})
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	st, err := p.Wait() // of the intermediate process; the keeper has forked off it
	if err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	if !st.Success() {
		return fmt.Errorf("start keeper: %s", st)
	}
	return nil
}

// Dial connects to the keeper in dir. The error is ErrGone if none runs there.
func Dial(dir string) (*Keeper, error) {
	c, err := sock.Dial(dir, SocketName, "unixpacket")
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("dial keeper: %w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("dial keeper: %w", err)
	}
	w, err := c.File() // non-blocking, since c is
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dial keeper: %w", err), c.Close())
	}
	return &Keeper{conn: c, watch: w, done: make(chan struct{}), buf: make([]byte, 4096)}, nil
}

// Close disconnects; the keeper goes on holding everything.
func (k *Keeper) Close() error {
	k.once.Do(func() { close(k.done) })
	return errors.Join(k.watch.Close(), k.conn.Close())
}

// Done is closed when a call has found the keeper gone, when Watch has, or at Close.
func (k *Keeper) Done() <-chan struct{} { return k.done }

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

// Program is what the keeper starts again whenever it ends.
type Program struct {
	Name string
	Path string
	Args []string // with argv[0]
	Env  []string
	Log  *os.File // becomes its stdout and stderr
	// PID and PIDFD, if PIDFD is not nil, are the process that runs already.
	PID   int
	PIDFD *os.File
}

// Supervise starts p, unless it runs already or is adopted, and starts it again
// whenever it ends, until Forget. It returns p's pid.
func (k *Keeper) Supervise(p Program) (int, error) {
	r := request{op: opSupervise, nargs: len(p.Args), nenv: len(p.Env), files: []*os.File{p.Log}}
	r.strings = append(append([]string{p.Name, p.Path}, p.Args...), p.Env...)
	if p.PIDFD != nil {
		r.flags, r.arg = flagAdopt, uint32(p.PID)
		r.files = append(r.files, p.PIDFD)
	}
	pid, _, _, err := k.call(r)
	return int(pid), err
}

// Forget ends the supervision of a program, which goes on running.
func (k *Keeper) Forget(name string) error {
	_, _, _, err := k.call(request{op: opForget, strings: []string{name}})
	return err
}

// Who returns the pid of a supervised program, 0 between two starts.
func (k *Keeper) Who(name string) (int, error) {
	pid, _, _, err := k.call(request{op: opWho, strings: []string{name}})
	return int(pid), err
}

// Quit ends the keeper, which drops all it holds, and returns when it is gone.
func (k *Keeper) Quit() error {
	_, _, _, err := k.call(request{op: opQuit, strings: []string{""}})
	if err == nil {
		k.Watch()
	}
	return err
}

// Watch returns when the keeper has gone away or k has been closed.
func (k *Keeper) Watch() {
	rc, err := k.watch.SyscallConn()
	if err != nil {
		k.once.Do(func() { close(k.done) })
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
	})
	k.once.Do(func() { close(k.done) })
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

// call sends one request and waits for its answer, which the keeper gives without
// ever waiting for anything itself.
func (k *Keeper) call(r request) (value uint32, body []byte, files []*os.File, err error) {
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
	if _, _, err := k.conn.WriteMsgUnix(b, oob, nil); err != nil {
		return 0, nil, nil, k.gone(err)
	}
	control := make([]byte, unix.CmsgSpace(4*MaxFDs))
	n, cn, _, _, err := k.conn.ReadMsgUnix(k.buf, control)
	if err != nil || n < 8 {
		return 0, nil, nil, k.gone(err)
	}
	files, err = received(control[:cn])
	if err != nil {
		return 0, nil, nil, fmt.Errorf("ask keeper: %w", err)
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

func (k *Keeper) gone(err error) error {
	k.once.Do(func() { close(k.done) })
	if err == nil {
		return ErrGone
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
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
