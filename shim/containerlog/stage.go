package containerlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A stage makes the way of a stream's bytes from a pipe into the log survive kill -9 at
// any instruction, with no byte lost and none written twice. It is a small file on
// tmpfs: a header, then bytes that have left the pipe. A system call is never cut in
// two by SIGKILL here (splice(2) takes from the pipe exactly what it added to the file,
// and the header is one pwrite(2)), so each step either happened or did not:
//
//	pipe ──splice──► stage[start:end] ──format──► log
//
//	idle{start}           bytes from start on are not in the log
//	writing{start, mark}  … or the log has some of them, from mark on: undo that
//	idle{end}             all are in the log
//
// An unfinished line stays in the stage until its line feed comes.
type stage struct {
	f          *os.File
	start, end int64 // file offsets
	headed     bool  // the header is there
}

const (
	stageMagic  = 0x31676174536f4343 // "CCoStag1"
	stageHeader = 64                 // bytes before the data
	// stageLimit is how far a stage grows while it never runs empty (each splice ends
	// inside a line). Beyond it the line is cut, and the stage starts again.
	stageLimit = 1 << 20
	// stageKeep bytes (a page) an empty stage may occupy: truncating costs system calls.
	stageKeep = 4 << 10
)

type stageState uint64

const (
	stageIdle stageState = iota
	stageWriting
)

func openStage(path string) (*stage, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open stage: %w", err)
	}
	return &stage{f: f, start: stageHeader, end: stageHeader}, nil
}

// recover reads what an earlier shim left and makes the log as if its unfinished
// write had not begun. log may be nil.
func (s *stage) recover(log *Log) error {
	st, err := s.f.Stat()
	if err != nil {
		return fmt.Errorf("recover stage: %w", err)
	}
	var h [stageHeader]byte
	n, _ := s.f.ReadAt(h[:], 0)
	if n < stageHeader || binary.NativeEndian.Uint64(h[0:]) != stageMagic {
		return nil // never used
	}
	s.headed = true // or the next fill would write the header again, with bytes before start that are logged
	state := stageState(binary.NativeEndian.Uint64(h[8:]))
	s.start = int64(binary.NativeEndian.Uint64(h[16:]))
	s.end = st.Size()
	if s.start < stageHeader || s.start > s.end {
		s.start = s.end // killed between the truncation and the header of reset
		if state == stageIdle {
			// Or the next recover would take the next bytes for logged ones.
			return s.mark(stageIdle, s.start, logMark{})
		}
	}
	if state != stageWriting || log == nil {
		return nil
	}
	if err := log.rollback(logMark{
		dev: binary.NativeEndian.Uint64(h[24:]), ino: binary.NativeEndian.Uint64(h[32:]),
		offset: int64(binary.NativeEndian.Uint64(h[40:])),
	}); err != nil {
		return err
	}
	// Once: what comes after it now may be the other stream's.
	return s.mark(stageIdle, s.start, logMark{})
}

func (s *stage) mark(state stageState, start int64, m logMark) error {
	var h [stageHeader]byte
	binary.NativeEndian.PutUint64(h[0:], stageMagic)
	binary.NativeEndian.PutUint64(h[8:], uint64(state))
	binary.NativeEndian.PutUint64(h[16:], uint64(start))
	binary.NativeEndian.PutUint64(h[24:], m.dev)
	binary.NativeEndian.PutUint64(h[32:], m.ino)
	binary.NativeEndian.PutUint64(h[40:], uint64(m.offset))
	if _, err := s.f.WriteAt(h[:], 0); err != nil {
		return fmt.Errorf("mark stage: %w", err)
	}
	s.headed = true
	return nil
}

// fill moves what is in the pipe fd to the end of the stage and returns how many
// bytes it was; EAGAIN if there is nothing.
func (s *stage) fill(fd int) (int, error) {
	if !s.headed {
		if err := s.mark(stageIdle, stageHeader, logMark{}); err != nil {
			return 0, err
		}
	}
	for {
		off := s.end
		n, err := unix.Splice(fd, nil, int(s.f.Fd()), &off, stageLimit, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			s.end += n
		}
		return int(n), err
	}
}

// bytes returns what is not in the log yet, at most len(buf) bytes of it.
func (s *stage) bytes(buf []byte) ([]byte, error) {
	n := min(int64(len(buf)), s.end-s.start)
	got, err := s.f.ReadAt(buf[:n], s.start)
	if int64(got) < n {
		return nil, fmt.Errorf("read stage: %w", err)
	}
	return buf[:n], nil
}

// done says that n more bytes need not be kept.
func (s *stage) done(n int) error {
	start := s.start + int64(n)
	if err := s.mark(stageIdle, start, logMark{}); err != nil {
		return err
	}
	s.start = start
	if s.start == s.end && s.end > stageKeep {
		return s.reset()
	}
	return nil
}

// reset gives the memory of an empty stage back.
func (s *stage) reset() error {
	// In this order: a header that points beyond the end means empty, too.
	if err := s.f.Truncate(stageHeader); err != nil {
		return fmt.Errorf("reset stage: %w", err)
	}
	s.start, s.end = stageHeader, stageHeader
	return s.mark(stageIdle, stageHeader, logMark{})
}

func (s *stage) full() bool { return s.end >= stageLimit }

func (s *stage) close() { s.f.Close() }
