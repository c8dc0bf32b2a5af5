package containerlog

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// Pump carries one output stream of a container's init: pipe → stage → log, and to
// attached clients. The bytes of a terminal come from its master and also go through
// the pipe, because the pipe survives the shim in the keeper.
//
// It needs no buffer and no thread while no bytes flow. Under load it takes turns with the
// other pumps (see Share), one turn for each write to the log.
type Pump struct {
	stream string   // "stdout" or "stderr"
	pipe   *os.File // our end of the FIFO, open for reading and writing, non-blocking
	tty    *os.File // or nil
	out    *Fanout
	busy   func()            // called while bytes flow
	rotate func(n int) error // makes room for n bytes in a log with a limit
	share  *Share            // shared by all pumps
	rate   *Rate             // of the container
	slog   *slog.Logger
	turn   *turn
	ready  <-chan struct{} // closed when the pump may start; nil: at once
	ending chan struct{}   // closed when the pump must end
	over   sync.Once       // closes ending
	done   chan struct{}   // closed when the goroutine has ended
	moved  atomic.Int64    // bytes handled so far: a log that hangs differs from a slow one

	mu      sync.Mutex // held over moving bytes
	stage   *stage
	log     *Log // or nil
	more    bool // the stage may have bytes that can be written now
	lost    int  // bytes that could not be written (disk full), to be told when it can be
	stuck   bool // the last rotation failed
	running bool
}

// Sizes of the buffers of a busy pump. A buffer of log records is larger than the
// bytes in them by the headers.
const chunkSize = 64 << 10

type pumpBuffers struct {
	chunk   [chunkSize]byte
	records []byte
}

var pumpPool = sync.Pool{New: func() any { return new(pumpBuffers) }}

// Config is what a Pump is made of.
type Config struct {
	Stream string   // "stdout" or "stderr"
	Pipe   *os.File // open for reading and writing, non-blocking; owned by the Pump
	Stage  string   // path of the file that has what is neither in the pipe nor in the log
	Log    *Log     // nil: the output goes to those attached only
	Keep   func()   // called with a new file of Log as the current one, before the first write to it
	Out    *Fanout
	Busy   func() // called while bytes flow
	Share  *Share // shared by all pumps
	Rate   *Rate  // of the container
	Slog   *slog.Logger
}

// OpenPump opens the stage of a stream, and returns its Pump, which does not run yet.
func OpenPump(c Config) (*Pump, error) {
	st, err := openStage(c.Stage)
	if err != nil {
		return nil, err
	}
	return &Pump{
		stream: c.Stream, pipe: c.Pipe, out: c.Out, busy: c.Busy, slog: c.Slog,
		ending: make(chan struct{}), done: make(chan struct{}), stage: st, log: c.Log,
		rotate: func(n int) error { return c.Log.rotate(n, c.Keep) },
		share:  c.Share, rate: c.Rate, turn: newTurn(),
	}, nil
}

// Recover brings a log to the point from which the pumps of its streams can go on, after the end of
// the process that used them before. log may be nil.
func Recover(log *Log, keep func(), pumps ...*Pump) error {
	var errs []error
	for _, p := range pumps {
		// All before the first write: an unfinished one of the other stream is cut off to the log's
		// end.
		errs = append(errs, p.stage.recover(log))
	}
	if log != nil && log.cutShort() {
		errs = append(errs, log.Reopen(keep))
	}
	for _, p := range pumps {
		p.more = true
	}
	return errors.Join(errs...)
}

// Stream is the name of the pump's stream.
func (p *Pump) Stream() string { return p.stream }

// Pipe is the pump's end of the stream's pipe.
func (p *Pump) Pipe() *os.File { return p.pipe }

// Moved returns how many bytes the pump has handled so far. A log that hangs differs in that from a
// slow one.
func (p *Pump) Moved() int64 { return p.moved.Load() }

// Start starts to carry bytes, until Stop. tty is the terminal's master, whose output goes through
// the pipe, and which the pump owns from now on; or nil. The pump waits until ready is closed; nil
// does not wait.
func (p *Pump) Start(tty *os.File, ready <-chan struct{}) {
	p.tty, p.ready = tty, ready
	p.running = true
	go p.run()
}

func (p *Pump) run() {
	defer close(p.done)
	if p.ready != nil {
		select {
		case <-p.ready:
		case <-p.ending:
			return
		}
	}
	source := p.pipe
	if p.tty != nil {
		source = p.tty
	}
	rc, err := source.SyscallConn()
	if err != nil {
		return
	}
	// Bytes are moved on a stack of their own: one that has grown for that would never
	// shrink to what waiting needs.
	ended := make(chan bool)
	work := func() { ended <- p.carryAll() }
	first := true // the pipe may have something even if the terminal has not
	_ = rc.Read(func(fd uintptr) bool {
		if !first && !readable(fd) {
			return false
		}
		first = false
		go work()
		return <-ended
	})
}

func readable(fd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p[:], 0)
	return n > 0 || err != nil
}

// carryAll moves bytes until there are none. ended: none will come.
func (p *Pump) carryAll() (ended bool) {
	for p.awaitTurn() {
		moved, ended := p.takeTurn()
		if !moved || ended {
			return ended
		}
		p.busy()
	}
	return true
}

// awaitTurn returns when the pump may continue. It returns false if the pump must end.
func (p *Pump) awaitTurn() bool {
	if pause := p.rate.pause(); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-p.ending:
			return false
		}
	}
	return p.share.take(p.turn, p.ending)
}

func (p *Pump) takeTurn() (moved, ended bool) {
	runtime.LockOSThread() // threadTime measures this thread
	defer runtime.UnlockOSThread()
	began := threadTime()
	defer func() { p.share.done(p.turn, threadTime()-began) }()
	// The lock is free between two turns, so that Drain can take it.
	p.mu.Lock()
	defer p.mu.Unlock()
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	n, ended := p.step(b)
	return n > 0, ended
}

// Drain carries the bytes that are there now, including an unfinished line. It does not wait for a
// turn, because the container's exit waits for it. It leaves later bytes, from other processes that
// have the pipe open, to the pump.
func (p *Pump) Drain() {
	limit := chunkSize // the terminal's own buffer
	rawfd.With(p.pipe, func(fd int) {
		if size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
			limit += size
		}
	})
	p.carry(limit)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped() {
		return
	}
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	p.write(b, flushRest)
}

// carry moves the stage's bytes, then the pipe's until it is empty or limit is reached.
func (p *Pump) carry(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped() {
		return
	}
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	p.write(b, keepRest)
	for total := 0; total < limit; {
		n, ended := p.step(b)
		if n == 0 || ended {
			return
		}
		total += n
		p.write(b, keepRest)
	}
}

func (p *Pump) stopped() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// step moves some bytes: it writes what can be written, or else fills the stage. n is 0 if there
// was nothing to do. ended: there will never be more.
func (p *Pump) step(b *pumpBuffers) (n int, ended bool) {
	if p.stopped() {
		return 0, true
	}
	if p.more {
		if n = p.writeSome(b, keepRest); n > 0 {
			return n, false
		}
	}
	ttyEnded := p.tty != nil && p.fromTerminal(b)
	n, err := p.fill(b)
	if n > 0 {
		p.writeSome(b, keepRest)
		return n, false
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		p.slog.Error("cannot read container output", "stream", p.stream, "err", err)
		return 0, true
	}
	return 0, ttyEnded
}

// fromTerminal moves what the terminal has into the (empty) pipe.
func (p *Pump) fromTerminal(b *pumpBuffers) (ended bool) {
	var n int64
	var err error
	rawfd.With(p.tty, func(tty int) {
		rawfd.With(p.pipe, func(pipe int) {
			n, err = unix.Splice(tty, nil, pipe, nil, chunkSize, unix.SPLICE_F_NONBLOCK)
			if errors.Is(err, unix.EINVAL) { // no splice from terminals before Linux 6.5
				var r int
				if r, err = unix.Read(tty, b.chunk[:]); r > 0 {
					n = int64(r)
					_, err = unix.Write(pipe, b.chunk[:r])
				}
			}
		})
	})
	// EIO: no process has the other side open. While init lives it may open /dev/console
	// again; that wakes the poller.
	return n <= 0 && err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EIO)
}

// fill moves what the pipe has into the stage, and shows it to those attached.
func (p *Pump) fill(b *pumpBuffers) (n int, err error) {
	before := p.stage.end
	rawfd.With(p.pipe, func(fd int) { n, err = p.stage.fill(fd) })
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		return p.bypass(b)
	}
	for at := before; n > 0 && at < p.stage.end && p.out.attached(); {
		piece := b.chunk[:min(chunkSize, p.stage.end-at)]
		if _, err := p.stage.f.ReadAt(piece, at); err != nil {
			break
		}
		p.out.write(p.stream, piece)
		at += int64(len(piece))
	}
	return max(n, 0), err
}

// bypass moves the pipe's bytes into the log without the stage, for which there is no room. The log
// is then not safe against kill -9, but the container does not hang.
func (p *Pump) bypass(b *pumpBuffers) (n int, err error) {
	p.write(b, flushRest) // first the bytes in the stage
	rawfd.With(p.pipe, func(fd int) { n, err = unix.Read(fd, b.chunk[:]) })
	if n <= 0 {
		return 0, err
	}
	p.out.write(p.stream, b.chunk[:n])
	p.moved.Add(int64(n))
	for data := b.chunk[:n]; len(data) > 0; {
		data = data[p.append(b, data, flushRest, func(logMark) error { return nil }, func(int) {}):]
	}
	return n, nil
}

// write writes the whole stage to the log.
func (p *Pump) write(b *pumpBuffers, r rest) {
	for p.writeSome(b, r) > 0 {
	}
}

// writeSome writes as much of the stage to the log as one write takes. It returns how many of the
// container's bytes that was.
func (p *Pump) writeSome(b *pumpBuffers, r rest) (used int) {
	defer func() { p.more = used > 0 && p.stage.start < p.stage.end }()
	staged := int(p.stage.end - p.stage.start)
	if staged == 0 {
		return 0
	}
	if p.log == nil {
		if err := p.stage.done(staged); err != nil {
			p.slog.Error("cannot discard container output", "stream", p.stream, "err", err)
			return 0
		}
		return staged
	}
	data, err := p.stage.bytes(b.chunk[:])
	if err != nil {
		p.slog.Error("cannot read stage", "stream", p.stream, "err", err)
		return 0
	}
	if p.stage.full() && staged <= maxLogLine {
		r = flushRest
	}
	used = p.append(b, data, r,
		func(m logMark) error { return p.stage.mark(stageWriting, p.stage.start, m) },
		func(n int) { err = p.stage.done(n) })
	p.moved.Add(int64(used))
	if err != nil {
		p.slog.Error("cannot mark output as logged", "stream", p.stream, "err", err)
		return 0
	}
	return used // 0: an unfinished line waits for its end
}

// append writes data to the log and returns how many bytes of it are dealt with; done
// is told as many, unless there are none.
func (p *Pump) append(b *pumpBuffers, data []byte, r rest, mark func(logMark) error, done func(int)) int {
	if p.log == nil {
		return len(data)
	}
	now := time.Now()
	records := b.records[:0]
	if p.lost > 0 {
		records, _ = appendLog(records, lostNote(p.lost), now, p.stream, keepRest)
	}
	records, used := appendLog(records, data, now, p.stream, r)
	b.records = records[:0]
	if used == 0 {
		return 0
	}
	err := p.log.append(records, 1, mark, func() { done(used) })
	for errors.Is(err, errLogFull) {
		failed := p.rotate(len(records))
		p.sayRotation(failed)
		if failed == nil {
			err = p.log.append(records, 1, mark, func() { done(used) })
			continue
		}
		// The next write tries again. Until then the old file is used, up to twice its size.
		if err = p.log.append(records, 2, mark, func() { done(used) }); errors.Is(err, errLogFull) {
			err = failed
			done(used)
		}
		break
	}
	if err != nil {
		// The container must go on when the disk is full; say once what happened.
		if p.lost == 0 {
			p.slog.Error("container output is lost", "stream", p.stream, "err", err)
		}
		p.lost += used
		return used
	}
	p.lost = 0
	p.rate.wrote(len(records), bytes.Count(records, []byte{'\n'}))
	return used
}

// sayRotation logs once that the log cannot be rotated.
func (p *Pump) sayRotation(err error) {
	if err != nil && !p.stuck {
		p.slog.Error("log is not rotated; its file becomes larger", "stream", p.stream, "err", err)
	}
	p.stuck = err != nil
}

func lostNote(n int) []byte {
	return []byte("[coracle: " + strconv.Itoa(n) + " bytes of output could not be written here]\n")
}

// End makes the pump end after its turn.
func (p *Pump) End() { p.over.Do(func() { close(p.ending) }) }

// Stop ends the pump, waits for it, and closes its files. The container's exit drained it before.
func (p *Pump) Stop() {
	p.End()
	if p.tty != nil {
		p.tty.Close()
	}
	p.pipe.Close()
	if p.running {
		<-p.done
	}
	p.mu.Lock() // a drain may be in progress
	defer p.mu.Unlock()
	p.stage.close()
}
