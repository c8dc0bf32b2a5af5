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
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/confine"
)

// igzip is ISA-L's gzip. It inflates twice as fast as the fastest package in Go, pipes
// included, and inflating is what bounds a pull. It is a process and not a library, so that
// the daemon stays static, and so that C code that reads untrusted bytes runs confined
// (package confine): as user nobody, with its two pipes and no other files or network.
//
// Whether it is used makes no difference to the result: that has a digest.
const igzip = "igzip"

// igzipWorth is the least compressed size for which a process pays.
const igzipWorth = 2 << 20

const (
	pipeBytes = 1 << 20   // of each of its pipes, and the size of its own buffers
	feedBytes = 256 << 10 // given to it at once
)

// igzipLimits are more than igzip takes of the largest layer: it writes no file.
var igzipLimits = confine.Limits{CPU: time.Hour, Memory: 512 << 20, Files: 16}

// igzipPath is where the program is, "" if it is not installed, or does not run as it is confined:
// its libraries may be where only the system's are looked for.
var igzipPath = sync.OnceValue(func() string {
	path, err := exec.LookPath(igzip)
	if err != nil || os.Geteuid() != 0 || !inflates(path) {
		return ""
	}
	return path
})

// inflates tries the program.
func inflates(path string) bool {
	const word = "word"
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(word)); err != nil || w.Close() != nil {
		return false
	}
	z, err := newIgzip(context.Background(), path, &packed)
	if err != nil {
		return false
	}
	got, err := io.ReadAll(z)
	return z.Close() == nil && err == nil && string(got) == word
}

// errDied is a decompressor that someone has ended, or that could not begin: nothing is known
// of its input.
var errDied = errors.New(igzip + " ended")

// noProgram is the least exit status with which shells and loaders say that they could not
// run a program (POSIX, 2.8.2).
const noProgram = 126

// igzipReader is what a process of igzip makes of a stream.
type igzipReader struct {
	out  io.ReadCloser
	stop context.CancelFunc
	wait func() error
}

func newIgzip(ctx context.Context, path string, in io.Reader) (*igzipReader, error) {
	ctx, stop := context.WithCancel(ctx)
	z := &igzipReader{stop: stop}
	if err := z.start(ctx, path, in); err != nil {
		stop()
		return nil, err
	}
	return z, nil
}

// start starts the process between two pipes, and a goroutine that feeds it. If the daemon dies,
// the end of its pipes ends the process.
func (z *igzipReader) start(ctx context.Context, path string, in io.Reader) error {
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
	process, err := confine.Start(ctx, confine.Program{
		Name: path, Args: []string{"-d", "-c"}, Stdin: stdin, Stdout: stdout,
		Limits: igzipLimits,
	})
	if err != nil {
		return errors.Join(err, feed.Close(), out.Close())
	}
	z.out = out
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
		err := process.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil // it has ended well; what it said was not read in time, on a machine that stood still, say
		}
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
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !exit.Exited() || exit.ExitCode() >= noProgram {
			return n, fmt.Errorf("%w: %w", errDied, err)
		}
		return n, err
	}
	return n, io.EOF
}

// Close ends the process. The stream that it reads must not block forever.
func (z *igzipReader) Close() error {
	z.stop()
	_ = z.out.Close()
	_ = z.wait() // killed, most likely
	return nil
}
