package unpack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// igzip is ISA-L's gzip. It inflates twice as fast as the fastest package in Go, pipes
// included, and inflating is what bounds a pull. It is a process and not a library, so that
// the daemon stays static, and so that C that reads what strangers have sent runs as nobody,
// with nothing but its two pipes.
//
// Whether it is used makes no difference to the result: that has a digest.
const igzip = "igzip"

// igzipWorth is the least compressed size for which a process pays.
const igzipWorth = 2 << 20

const (
	pipeBytes = 1 << 20   // of each of its pipes, and the size of its own buffers
	feedBytes = 256 << 10 // given to it at once
)

// nobody is the user that needs no rights.
const nobody = 65534

// igzipPath is where the program is, "" if it is not installed.
var igzipPath = sync.OnceValue(func() string {
	path, err := exec.LookPath(igzip)
	if err != nil {
		return ""
	}
	return path
})

// errDied is a decompressor that somebody has ended: nothing is known of its input.
var errDied = errors.New(igzip + " ended")

// igzipReader is what a process of igzip makes of a stream.
type igzipReader struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	stderr tail
	stop   context.CancelFunc
	wait   func() error
}

func newIgzip(ctx context.Context, path string, in io.Reader) (*igzipReader, error) {
	ctx, stop := context.WithCancel(ctx)
	z := &igzipReader{stop: stop}
	z.cmd = exec.CommandContext(ctx, path, "-d", "-c")
	z.cmd.Env = []string{}
	z.cmd.Dir = "/"
	z.cmd.Stderr = &z.stderr
	z.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		// No Pdeathsig: that is the death of the thread, which may come at any time. If
		// the daemon dies, the end of its pipes ends this.
	}
	if err := z.start(in); err != nil {
		stop()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return z, nil
}

// start starts the process between two pipes, and a goroutine that feeds it.
func (z *igzipReader) start(in io.Reader) error {
	stdin, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		return errors.Join(err, feed.Close())
	}
	defer stdout.Close()
	widen(feed)
	widen(out)
	z.cmd.Stdin, z.cmd.Stdout, z.out = stdin, stdout, out
	if err := z.cmd.Start(); err != nil {
		return errors.Join(err, feed.Close(), out.Close())
	}
	fed := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{feed}, struct{ io.Reader }{in}, make([]byte, feedBytes))
		_ = feed.Close()
		if errors.Is(err, syscall.EPIPE) {
			err = nil // its exit status says why it wants no more
		}
		fed <- err
	}()
	z.wait = sync.OnceValue(func() error {
		err := z.cmd.Wait()
		return cmp.Or(err, <-fed)
	})
	return nil
}

// widen lets a pipe hold as much as igzip reads and writes at once, so that neither side is
// woken for each 64 KiB. It goes without, too.
func widen(pipe *os.File) {
	if c, err := pipe.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
	}
}

func (z *igzipReader) Read(p []byte) (int, error) {
	n, err := z.out.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	// The end of the pipe is not the end of the stream: it may have died.
	if err := z.wait(); err != nil {
		if z.cmd.ProcessState == nil || !z.cmd.ProcessState.Exited() {
			return n, fmt.Errorf("%w: %w", errDied, err)
		}
		return n, fmt.Errorf("%s: %w: %s", igzip, err, bytes.TrimSpace(z.stderr.b))
	}
	return n, io.EOF
}

// Close ends the process. The stream that it reads must not block for ever.
func (z *igzipReader) Close() error {
	z.stop()
	_ = z.out.Close()
	_ = z.wait() // killed, most likely
	return nil
}

// tail keeps the beginning of what a process complains of.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[:min(len(p), 512-min(len(t.b), 512))]...)
	return len(p), nil
}
