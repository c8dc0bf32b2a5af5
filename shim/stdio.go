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
)

// stdio is the shim's side of the standard streams of a container's init: either FIFOs
// of its own that pumps carry into the log (record.Log), or the caller's FIFOs, which
// the process gets itself (and a relay with a terminal).
type stdio struct {
	c     *container
	log   *logFile // or nil
	pumps []*pump
	rate  logRate
	out   fanout
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
func makeStdio(c *container, log *logFile) (*stdio, error) {
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
			s.log.close()
		}
		place, _ := placeOf(s.c.rec.LogDirectory, s.c.rec.LogPath) // of a rebuilt record none: the open file is written
		s.log = newLog(place, s.c.rec.logLimit(), f)
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
		st, err := openStage(filepath.Join(s.c.dir, name+stageName))
		if err != nil {
			pipe.Close()
			return err
		}
		s.pumps = append(s.pumps, &pump{
			stream: name, pipe: pipe, out: &s.out, busy: s.c.s.garbage.busy, slog: s.c.log,
			ending: make(chan struct{}), done: make(chan struct{}), stage: st, log: s.log, rotate: s.rotateLog,
			share: s.c.s.share, rate: &s.rate, turn: newTurn(),
		})
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
	if s.tty != nil && len(s.pumps) > 0 {
		s.pumps[0].tty = s.tty
	}
	for _, p := range s.pumps {
		p.start()
	}
	if rec := &s.c.rec; !rec.Log && s.tty != nil {
		s.relay = startRelay(s.tty, rec.StdinFIFO, rec.StdoutFIFO, s.c.log)
	}
}

// resume continues where an earlier shim stopped. It does not wait for the log, whose file system
// may hang, because the other containers must be adopted.
func (s *stdio) resume() {
	s.recovered = make(chan struct{})
	for _, p := range s.pumps {
		p.ready = s.recovered
	}
	go func() {
		defer close(s.recovered)
		if err := s.recover(); err != nil {
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

// recover brings the log to the point from which the pumps can go on.
func (s *stdio) recover() error {
	var errs []error
	for _, p := range s.pumps {
		// All before the first write: an unfinished one of the other stream is cut off to the log's
		// end.
		errs = append(errs, p.stage.recover(s.log))
	}
	if s.log != nil && s.log.cutShort() {
		errs = append(errs, s.log.reopen(s.keep))
	}
	for _, p := range s.pumps {
		p.more = true
	}
	return errors.Join(errs...)
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
		p.drain()
	}
	if s.relay != nil {
		s.relay.drain()
	}
	s.out.close()
}

// moved returns how many bytes have been written to the log.
func (s *stdio) moved() (n int64) {
	for _, p := range s.pumps {
		n += p.moved.Load()
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
		files["log"] = s.log.file()
	}
	for _, p := range s.pumps {
		files[p.stream] = p.pipe
	}
	return files
}

// reopenLog goes on in a new file under the log's name.
func (s *stdio) reopenLog() error {
	if s.log == nil {
		return nil
	}
	s.awaitRecovered()
	return s.log.reopen(s.keep)
}

// rotateLog makes room in the log for n bytes. The keeper must hold the next file before anything
// is written to it. Otherwise the next shim would look for an unfinished write in the old one.
func (s *stdio) rotateLog(n int) error { return s.log.rotate(n, s.keep) }

// keep has the keeper hold a new log file; a refusal is logged.
func (s *stdio) keep() { _ = s.c.holdFiles() }

// close closes all files and waits for the pumps.
func (s *stdio) close() {
	s.once.Do(func() {
		s.out.close()
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
		p.end()
	}
	for _, p := range s.pumps {
		p.stop()
	}
	if s.tty != nil {
		s.tty.Close()
	}
	if s.log != nil {
		s.log.close()
	}
}
