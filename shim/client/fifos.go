package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// fifos are the named pipes of one exec or attachment: the process (or the shim) has
// one end of each, copying goroutines of the daemon have the other.
type fifos struct {
	dir                   string
	stdin, stdout, stderr string   // paths; empty: not wanted
	in                    *os.File // write end
	outputs               []*output

	mu     sync.Mutex
	guards []*os.File // stdin's is the first
}

// output is a pipe that is read.
type output struct {
	f    *os.File
	to   io.Writer
	done chan struct{}
}

// makeFIFOs makes pipes for the wanted streams. For each, the other end is held open
// too (guards), so that neither side sees an end before it has started.
func (c *Client) makeFIFOs(s Streams, terminal bool) (_ *fifos, err error) {
	dir, err := os.MkdirTemp(c.execDir(), "")
	if err != nil {
		return nil, fmt.Errorf("make FIFOs: %w", err)
	}
	p := &fifos{dir: dir}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if s.Stdin != nil {
		p.stdin = filepath.Join(dir, "stdin")
		if p.in, err = p.add(p.stdin, unix.O_RDONLY, unix.O_WRONLY); err != nil {
			return nil, err
		}
	}
	if s.Stdout != nil {
		p.stdout = filepath.Join(dir, "stdout")
		if err := p.addOutput(p.stdout, s.Stdout); err != nil {
			return nil, err
		}
	}
	if s.Stderr != nil && !terminal {
		p.stderr = filepath.Join(dir, "stderr")
		if err := p.addOutput(p.stderr, s.Stderr); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *fifos) addOutput(path string, to io.Writer) error {
	f, err := p.add(path, unix.O_WRONLY, unix.O_RDONLY)
	if err == nil {
		p.outputs = append(p.outputs, &output{f: f, to: to, done: make(chan struct{})})
	}
	return err
}

// add makes a pipe and returns our end of it.
func (p *fifos) add(path string, theirs, ours int) (*os.File, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // the process may open /dev/stdout again
		return nil, fmt.Errorf("make FIFO: %w", err)
	}
	var mine, guard *os.File
	open := func(mode int) (*os.File, error) {
		fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open FIFO: %w", err)
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	var err error
	// The reading end must be there first.
	if theirs == unix.O_RDONLY {
		if guard, err = open(theirs); err == nil {
			mine, err = open(ours)
		}
	} else {
		if mine, err = open(ours); err == nil {
			guard, err = open(theirs)
		}
	}
	if guard != nil {
		p.guards = append(p.guards, guard)
	}
	if err != nil && mine != nil {
		mine.Close()
		mine = nil
	}
	return mine, err
}

// dropReader closes the guard that reads stdin. A writer that waits for a reader must not take us
// for one: bytes written before the real reader would be lost.
func (p *fifos) dropReader() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.in != nil && len(p.guards) > 0 {
		p.guards[0].Close()
		p.guards = p.guards[1:]
	}
}

// dropGuards is called when the other side has opened its ends.
func (p *fifos) dropGuards() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.guards {
		g.Close()
	}
	p.guards = nil
}

// copy starts copying, and calls ended when stdin has been copied. The goroutine of stdin ends when
// its Reader returns; no one can wait for that.
func (p *fifos) copy(stdin io.Reader, ended func()) {
	for _, o := range p.outputs {
		go o.copy()
	}
	if p.in != nil {
		go func() {
			_, _ = io.Copy(onlyWriter{p.in}, stdin)
			p.in.Close()
			ended()
		}()
	}
}

// onlyWriter hides ReadFrom, which would hold a pipe of its own for splice.
type onlyWriter struct{ io.Writer }

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// copy ends with the pipe, when the deadline is set by finish and what the pipe had then
// is copied, or when the Writer fails: then the process gets SIGPIPE.
func (o *output) copy() {
	defer close(o.done)
	defer o.f.Close()
	b := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(b)
	left := -1 // bytes to copy after the deadline: children may write forever
	for left != 0 {
		n, err := o.f.Read(*b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if left < 0 {
				left = available(o.f)
			}
			n, err = readNow(o.f, (*b)[:min(left, len(*b))])
			left -= n
		}
		if n > 0 {
			if _, werr := o.to.Write((*b)[:n]); werr != nil {
				return
			}
		}
		if err != nil || n == 0 {
			return
		}
	}
}

// available is how many bytes a pipe has now.
func available(f *os.File) (n int) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // FIONREAD
			if err != nil {
				n = 0
			}
		})
	}
	return n
}

// readNow reads what is there, without regard to deadlines.
func readNow(f *os.File, b []byte) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := rc.Control(func(fd uintptr) { n, err = unix.Read(int(fd), b) }); cerr != nil {
		return 0, cerr
	}
	return max(n, 0), err
}

// finish waits until what is in the pipes now has been copied, or ctx ends.
func (p *fifos) finish(ctx context.Context) error {
	for _, o := range p.outputs {
		_ = o.f.SetReadDeadline(time.Unix(1, 0))
	}
	return p.await(ctx)
}

// await waits until the pipes have ended and have been copied, or ctx ends.
func (p *fifos) await(ctx context.Context) error {
	for _, o := range p.outputs {
		select {
		case <-o.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// close removes the pipes. Copying ends. A second close is harmless.
func (p *fifos) close() {
	p.dropGuards()
	if p.in != nil {
		p.in.Close()
	}
	for _, o := range p.outputs {
		o.f.Close()
	}
	os.RemoveAll(p.dir)
}
