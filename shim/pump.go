package shim

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A pump carries one output stream of a container's init: pipe → stage → log, and to
// whoever is attached. With a terminal the bytes come from its master and go through
// the pipe all the same, because the pipe survives the shim in the keeper.
//
// It holds no buffer and no thread while nothing flows.
type pump struct {
	stream string   // "stdout" or "stderr"
	pipe   *os.File // our end of the FIFO, open for reading and writing, non-blocking
	tty    *os.File // or nil
	out    *fanout
	busy   func()            // called while bytes flow
	rotate func(n int) error // makes room for n bytes in a log with a limit
	slog   *slog.Logger
	done   chan struct{} // closed when the goroutine has ended
	moved  atomic.Int64  // bytes that are dealt with, so that a log that hangs can be told from a slow one

	mu      sync.Mutex // held over moving bytes
	stage   *stage
	log     *logFile // or nil
	lost    int      // bytes that could not be written (disk full), to be told when it can be
	running bool
	stopped bool
}

// Sizes of the buffers of a busy pump. A buffer of log records is larger than the
// bytes in them by the headers.
const (
	chunkSize  = 64 << 10
	drainLimit = 4 << 20 // bytes a drain carries at most: a container must not hold its exit up
)

type pumpBuffers struct {
	chunk   [chunkSize]byte
	records []byte
}

var pumpPool = sync.Pool{New: func() any { return new(pumpBuffers) }}

// start begins to carry bytes, until stop.
func (p *pump) start() {
	p.running = true
	go p.run()
}

// resume goes on where the pump of an earlier shim was, once the stages are recovered.
func (p *pump) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	p.write(b, keepRest)
}

func (p *pump) run() {
	defer close(p.done)
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
func (p *pump) carryAll() (ended bool) {
	for {
		// The lock is free between two chunks, for drain.
		n, ended := p.carry(chunkSize)
		if n == 0 || ended {
			return ended
		}
		p.busy()
	}
}

// drain carries what is there now, at most drainLimit bytes, and the unfinished
// line too.
func (p *pump) drain() {
	p.carry(drainLimit)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	p.write(b, flushRest)
}

// carry moves bytes until there are none, or limit is reached. ended: none will come.
func (p *pump) carry(limit int) (total int, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return 0, true
	}
	b := pumpPool.Get().(*pumpBuffers)
	defer pumpPool.Put(b)
	for total < limit {
		ttyEnded := p.tty != nil && p.fromTerminal(b)
		n, err := p.fill(b)
		if n > 0 {
			total += n
			p.write(b, keepRest)
			continue
		}
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			p.slog.Error("cannot read container output", "stream", p.stream, "error", err)
			return total, true
		}
		return total, ttyEnded
	}
	return total, false
}

// fromTerminal moves what the terminal has into the (empty) pipe.
func (p *pump) fromTerminal(b *pumpBuffers) (ended bool) {
	var n int64
	var err error
	withFD(p.tty, func(tty int) {
		withFD(p.pipe, func(pipe int) {
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
func (p *pump) fill(b *pumpBuffers) (n int, err error) {
	before := p.stage.end
	withFD(p.pipe, func(fd int) { n, err = p.stage.fill(fd) })
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		// No room for the stage: rather a log that is not proof against kill -9 than a container that hangs.
		withFD(p.pipe, func(fd int) { n, err = unix.Read(fd, b.chunk[:]) })
		if n > 0 {
			p.out.write(p.stream, b.chunk[:n])
			for data := b.chunk[:n]; len(data) > 0; {
				data = data[p.append(b, data, flushRest, func(logMark) error { return nil }, func(int) {}):]
			}
		}
		return max(n, 0), err
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

// write brings what is in the stage into the log.
func (p *pump) write(b *pumpBuffers, r rest) {
	if p.log == nil {
		if err := p.stage.done(int(p.stage.end - p.stage.start)); err != nil {
			p.slog.Error("cannot discard container output", "stream", p.stream, "error", err)
		}
		return
	}
	for p.stage.start < p.stage.end {
		data, err := p.stage.bytes(b.chunk[:])
		if err != nil {
			p.slog.Error("cannot read stage", "stream", p.stream, "error", err)
			return
		}
		last := r
		if p.stage.full() && p.stage.end-p.stage.start <= maxLogLine {
			last = flushRest
		}
		used := p.append(b, data, last,
			func(m logMark) error { return p.stage.mark(stageWriting, p.stage.start, m) },
			func(n int) { err = p.stage.done(n) })
		p.moved.Add(int64(used))
		if used == 0 {
			return // an unfinished line waits for its end
		}
		if err != nil {
			p.slog.Error("cannot mark output as logged", "stream", p.stream, "error", err)
			return
		}
	}
}

// append writes data to the log and returns how many bytes of it are dealt with; done
// is told as many, unless there are none.
func (p *pump) append(b *pumpBuffers, data []byte, r rest, mark func(logMark) error, done func(int)) int {
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
	err := p.log.append(records, mark, func() { done(used) })
	for errors.Is(err, errLogFull) {
		if err = p.rotate(len(records)); err != nil {
			done(used)
			break
		}
		err = p.log.append(records, mark, func() { done(used) })
	}
	if err != nil {
		// The container must go on when the disk is full; say once what happened.
		if p.lost == 0 {
			p.slog.Error("container output is lost", "stream", p.stream, "error", err)
		}
		p.lost += used
		return used
	}
	p.lost = 0
	return used
}

// stop ends the pump and closes the pump's files. The exit has been drained before.
func (p *pump) stop() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	if p.tty != nil {
		p.tty.Close()
	}
	p.pipe.Close()
	if p.running {
		<-p.done
	}
	p.stage.close()
}
