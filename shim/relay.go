package shim

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

type relayBuffer [64 << 10]byte

// relayBuffers are for relays whose terminal has output just now.
var relayBuffers = sync.Pool{New: func() any { return new(relayBuffer) }}

// A relay copies between a terminal's master and the FIFOs of a caller, for execs with
// a terminal and for containerd's containers with one.
type relay struct {
	tty     *os.File
	in, out *os.File // or nil
	ending  atomic.Bool
	work    sync.WaitGroup
}

// startRelay opens the FIFOs (either path may be empty) and starts to copy.
func startRelay(tty *os.File, stdin, stdout string, log *slog.Logger) *relay {
	r := &relay{tty: tty}
	var err error
	if stdin != "" {
		// Open for writing too: a caller who comes late or goes is no end of input.
		if r.in, err = openPolled(stdin, unix.O_RDWR); err != nil {
			log.Warn("terminal has no input", "err", err)
		} else {
			r.work.Go(r.copyIn)
		}
	}
	if stdout != "" {
		r.out, err = openPolled(stdout, unix.O_WRONLY)
		if errors.Is(err, unix.ENXIO) {
			r.out, err = openPolled(stdout, unix.O_RDWR)
		}
		if err != nil {
			log.Warn("terminal has no output", "err", err)
		}
	}
	r.work.Go(r.copyOut)
	return r
}

func (r *relay) copyIn() {
	buf := make([]byte, 4<<10)
	for {
		n, err := r.in.Read(buf)
		if n > 0 {
			if _, err := r.tty.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// copyOut ends when the terminal has no process left (EIO), or after drain when it is
// empty; then the caller sees the end of the output. Without a reader the output is
// discarded, so that the process does not hang.
func (r *relay) copyOut() {
	if r.out != nil {
		defer r.out.Close()
	}
	rc, err := r.tty.SyscallConn()
	if err != nil {
		return
	}
	discard := r.out == nil
	for {
		b := (*relayBuffer)(nil)
		n, rerr := 0, error(nil)
		err := rc.Read(func(fd uintptr) bool {
			if b == nil {
				b = relayBuffers.Get().(*relayBuffer)
			}
			n, rerr = unix.Read(int(fd), b[:])
			if errors.Is(rerr, unix.EINTR) || (errors.Is(rerr, unix.EAGAIN) && !r.ending.Load()) {
				relayBuffers.Put(b) // no buffer while it is silent
				b = nil
				return false
			}
			return true
		})
		if err != nil && r.ending.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			// drain has woken us: what is there may still be read.
			_ = r.tty.SetReadDeadline(time.Time{})
			continue
		}
		if n > 0 && !discard {
			if _, werr := r.out.Write(b[:n]); werr != nil {
				discard = true
			}
		}
		if b != nil {
			relayBuffers.Put(b)
		}
		if err != nil || rerr != nil || n == 0 {
			return
		}
	}
}

// drain says that the process has ended: what the terminal has now is copied, then the
// output ends. It does not wait for that, because the caller's reader may be slow.
func (r *relay) drain() {
	r.ending.Store(true)
	_ = r.tty.SetReadDeadline(time.Unix(1, 0))
}

// stop ends the copying at once and closes all, the terminal too.
func (r *relay) stop() {
	r.tty.Close()
	for _, f := range []*os.File{r.in, r.out} {
		if f != nil {
			f.Close()
		}
	}
	r.work.Wait()
}

func resizeTerminal(tty *os.File, width, height uint16) error {
	err := error(os.ErrClosed)
	rawfd.With(tty, func(fd int) {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height})
	})
	if err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	return nil
}
