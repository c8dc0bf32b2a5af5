package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/containerlog"
)

// stdio is the shim's side of the standard streams of a container's init: either FIFOs
// of its own that pumps carry into the log (record.Log), or the caller's FIFOs, which
// the process gets itself (and a relay with a terminal).
type stdio struct {
	c     *container
	log   *containerlog.Log // or nil
	pumps []*containerlog.Pump
	rate  containerlog.Rate
	out   containerlog.Fanout
	tty   *os.File // the terminal's master; owned by the pump or the relay
	relay *relay
	once  sync.Once
	// recovered is closed when the log is consistent after the end of an earlier shim; nil for a
	// new container.
	recovered chan struct{}

	mu     sync.Mutex
	stdin  *os.File // our write end; nil if there is none (any more)
	closed bool
}

// Names of a container's files, in its directory.
const (
	stdinName  = "stdin"
	stdoutName = "stdout"
	stderrName = "stderr"
	stageName  = ".stage" // appended
)

// makeStdio makes the FIFOs of a new container. It owns log from now on.
func makeStdio(c *container, log *containerlog.Log) (*stdio, error) {
	s := &stdio{c: c, log: log}
	if !c.rec.Log {
		return s, nil
	}
	for _, name := range s.outputs() {
		if err := makeFIFO(filepath.Join(c.dir, name)); err != nil {
			s.close()
			return nil, err
		}
	}
	if s.wantsStdin() {
		if err := makeFIFO(filepath.Join(c.dir, stdinName)); err != nil {
			s.close()
			return nil, err
		}
	}
	if err := s.open(named{}); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// outputs are the streams that pumps carry; a terminal has only one.
func (s *stdio) outputs() []string {
	if s.c.rec.Terminal {
		return []string{stdoutName}
	}
	return []string{stdoutName, stderrName}
}

// wantsStdin says whether there is a FIFO for input: not if that goes to a terminal of ours.
func (s *stdio) wantsStdin() bool {
	rec := &s.c.rec
	return rec.Stdin && !rec.Terminal || rec.Terminal && !rec.ownTerminal(true)
}

// open makes the pumps, with the files that the keeper held or, where it has none,
// with newly opened ones.
func (s *stdio) open(held named) error {
	take := func(name string) *os.File {
		f := held[name]
		delete(held, name)
		return f
	}
	if f := take("log"); f != nil {
		// The file that was written last, even if it has another name by now.
		if s.log != nil {
			s.log.Close()
		}
		place, _ := containerlog.PlaceOf(s.c.rec.LogDirectory, s.c.rec.LogPath) // of a rebuilt record none: the open file is written
		s.log = containerlog.New(place, s.c.rec.logLimit(), f)
	}
	if f := take("tty"); f != nil {
		s.tty = f
	}
	for _, name := range s.outputs() {
		pipe := take(name)
		if pipe == nil {
			var err error
			// Open for writing too: it never reaches its end when clients come and go.
			if pipe, err = openPolled(filepath.Join(s.c.dir, name), unix.O_RDWR); err != nil {
				return err
			}
		}
		p, err := containerlog.OpenPump(containerlog.Config{
			Stream: name, Pipe: pipe, Stage: filepath.Join(s.c.dir, name+stageName), Log: s.log, Keep: s.keep, Out: &s.out,
			Busy: s.c.s.garbage.busy, Share: s.c.s.share, Rate: &s.rate, Slog: s.c.log,
		})
		if err != nil {
			pipe.Close()
			return err
		}
		s.pumps = append(s.pumps, p)
	}
	s.stdin = take(stdinName)
	return nil
}

// childEnds are what the engine gives to init.
type childEnds struct {
	runtime.Stdio
	console *runtime.ConsolePair
}

func (e *childEnds) close() {
	for _, f := range []*os.File{e.Stdin, e.Stdout, e.Stderr} {
		if f != nil {
			f.Close()
		}
	}
	if e.console != nil {
		e.console.Close()
	}
}

// childEnds opens init's own ends.
func (s *stdio) childEnds() (ends *childEnds, err error) {
	ends = &childEnds{}
	defer func() {
		if err != nil {
			ends.close()
		}
	}()
	rec := &s.c.rec
	if rec.ownTerminal(rec.Terminal) {
		if ends.console, err = runtime.NewConsolePair(); err != nil {
			return ends, err
		}
		ends.Console = ends.console.EngineEnd()
		return ends, nil
	}
	if !rec.Log {
		var in *os.File
		ends.Stdio, in, err = callerEnds(rec.StdinFIFO, rec.StdoutFIFO, rec.StderrFIFO)
		s.stdin = in
		return ends, err
	}
	if ends.Stdout, err = openBlocking(filepath.Join(s.c.dir, stdoutName), unix.O_RDWR); err != nil {
		return ends, err
	}
	if !rec.Terminal {
		if ends.Stderr, err = openBlocking(filepath.Join(s.c.dir, stderrName), unix.O_RDWR); err != nil {
			return ends, err
		}
	}
	if s.wantsStdin() {
		// Unlike the outputs, each end has one direction only, or there would be no end of input.
		path := filepath.Join(s.c.dir, stdinName)
		if ends.Stdin, err = openBlocking(path, unix.O_RDONLY); err != nil {
			return ends, err
		}
		s.stdin, err = openPolled(path, unix.O_WRONLY)
	}
	return ends, err
}

// callerEnds opens the FIFOs of a caller for a process without a terminal. in is a
// write end of stdin that keeps it open until CloseIO, or nil if the caller has one.
func callerEnds(stdin, stdout, stderr string) (child runtime.Stdio, in *os.File, err error) {
	defer func() {
		if err != nil {
			(&childEnds{Stdio: child}).close()
		}
	}()
	if stdout != "" {
		if child.Stdout, err = openOutput(stdout); err != nil {
			return child, nil, err
		}
	}
	if stderr != "" {
		if child.Stderr, err = openOutput(stderr); err != nil {
			return child, nil, err
		}
	}
	if stdin == "" {
		return child, nil, nil
	}
	if child.Stdin, err = openBlocking(stdin, unix.O_RDONLY); err != nil {
		return child, nil, err
	}
	if !hasWriter(stdin) {
		in, err = openPolled(stdin, unix.O_WRONLY)
	}
	return child, in, err
}

// hasWriter says whether a FIFO that we have open for reading is open for writing, or
// has been (there is data).
func hasWriter(path string) bool {
	fd, err := openFIFO(path, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var scratch [2]int
	if err := unix.Pipe2(scratch[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return false
	}
	defer unix.Close(scratch[0])
	defer unix.Close(scratch[1])
	// tee takes nothing out. 0 bytes: no writer; EAGAIN: one that is silent.
	n, err := unix.Tee(fd, scratch[1], 1, unix.SPLICE_F_NONBLOCK)
	return n > 0 || errors.Is(err, unix.EAGAIN)
}

// run starts to carry bytes.
func (s *stdio) run() {
	for i, p := range s.pumps {
		tty := s.tty
		if i > 0 {
			tty = nil
		}
		p.Start(tty, s.recovered)
	}
	if rec := &s.c.rec; !rec.Log && s.tty != nil {
		s.relay = startRelay(s.tty, rec.StdinFIFO, rec.StdoutFIFO, s.c.log)
	}
}

// resume continues where an earlier shim stopped. It does not wait for the log, whose file system
// may hang, because the other containers must be adopted.
func (s *stdio) resume() {
	s.recovered = make(chan struct{})
	go func() {
		defer close(s.recovered)
		if err := containerlog.Recover(s.log, s.keep, s.pumps...); err != nil {
			s.c.log.Error("log may contain duplicate lines", "err", err)
		}
	}()
	s.run()
}

// awaitRecovered returns when the log can be used.
func (s *stdio) awaitRecovered() {
	if s.recovered != nil {
		<-s.recovered
	}
}

// closePatience is how long the end of a container waits for a log whose file system hangs. The
// remaining output may be written later.
const closePatience = 2 * time.Second

// within waits for the end of do, at most for patience. It reports whether do has ended.
func within(patience time.Duration, do func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// drain carries what init left behind; those attached see the end.
func (s *stdio) drain() {
	s.awaitRecovered()
	for _, p := range s.pumps {
		p.Drain()
	}
	if s.relay != nil {
		s.relay.drain()
	}
	s.out.Close()
}

// moved returns how many bytes have been written to the log.
func (s *stdio) moved() (n int64) {
	for _, p := range s.pumps {
		n += p.Moved()
	}
	return n
}

// input is a new descriptor of init's stdin for one writer; nil if it has none.
func (s *stdio) input() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil
	case s.tty != nil:
		return dupPolled(s.tty)
	case s.stdin != nil:
		return dupPolled(s.stdin)
	}
	return nil, nil
}

// closeInput drops our end of stdin, and the keeper's.
func (s *stdio) closeInput() error {
	s.mu.Lock()
	in := s.stdin
	s.stdin = nil
	s.mu.Unlock()
	if in == nil {
		return nil
	}
	in.Close()
	_ = s.c.holdFiles()
	s.c.init.closeStdin()
	return s.c.update(func(r *record) { r.StdinClosed = true })
}

// resize sets the terminal's size.
func (s *stdio) resize(width, height uint16) error {
	if s.c.rec.Terminal && s.c.init.remote != nil {
		return s.c.init.resize(width, height)
	}
	if s.tty == nil {
		return fmt.Errorf("%w: container %s has no terminal", errPrecondition, s.c.id)
	}
	return resizeTerminal(s.tty, width, height)
}

// files are those that the keeper shall hold.
func (s *stdio) files() named {
	s.mu.Lock()
	defer s.mu.Unlock()
	files := named{stdinName: s.stdin, "tty": s.tty}
	if s.log != nil {
		files["log"] = s.log.File()
	}
	for _, p := range s.pumps {
		files[p.Stream()] = p.Pipe()
	}
	return files
}

// reopenLog goes on in a new file under the log's name.
func (s *stdio) reopenLog() error {
	if s.log == nil {
		return nil
	}
	s.awaitRecovered()
	return s.log.Reopen(s.keep)
}

// keep has the keeper hold a new log file; a refusal is logged. The keeper must hold it before
// anything is written to it. Otherwise the next shim would look for an unfinished write in the old
// one.
func (s *stdio) keep() { _ = s.c.holdFiles() }

// close closes all files and waits for the pumps.
func (s *stdio) close() {
	s.once.Do(func() {
		s.out.Close()
		s.mu.Lock()
		s.closed = true
		in := s.stdin
		s.stdin = nil
		s.mu.Unlock()
		if in != nil {
			in.Close()
		}
		if s.relay != nil {
			s.relay.stop()
		}
		if !within(closePatience, s.closeOutputs) {
			s.c.log.Error("log stays open: a write to it hangs")
		}
	})
}

func (s *stdio) closeOutputs() {
	for _, p := range s.pumps {
		p.End()
	}
	for _, p := range s.pumps {
		p.Stop()
	}
	if s.tty != nil {
		s.tty.Close()
	}
	if s.log != nil {
		s.log.Close()
	}
}
