package unpack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
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
	z.cmd.Stdin = in
	z.cmd.Stderr = &z.stderr
	z.cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		// No Pdeathsig: that is the death of the thread, which may come at any time. If
		// the daemon dies, the end of its pipes ends this.
	}
	z.wait = sync.OnceValue(z.cmd.Wait)
	var err error
	if z.out, err = z.cmd.StdoutPipe(); err == nil {
		err = z.cmd.Start()
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return z, nil
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
