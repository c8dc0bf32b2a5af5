package crilog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxRecord bounds one record. Writers cut lines at 16 KiB; peers' at a megabyte at most.
const maxRecord = 4 << 20

// reader reads the records of one file, which may grow.
type reader struct {
	file *os.File
	buf  *bufio.Reader
	part []byte // of a record whose newline is not there yet
	line int    // number of the record, for errors
}

func open(path string) (*reader, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &reader{file: f, buf: bufio.NewReaderSize(f, 64<<10)}, nil
}

func (r *reader) close() { _ = r.file.Close() }

// next returns the next record, io.EOF if there is none yet.
func (r *reader) next() (Line, error) {
	if n := len(r.part); n > 0 && r.part[n-1] == '\n' {
		r.part = r.part[:0]
	}
	for {
		piece, err := r.buf.ReadSlice('\n')
		r.part = append(r.part, piece...)
		if len(r.part) > maxRecord {
			return Line{}, fmt.Errorf("%s:%d: a record of more than %d bytes; is this a container's log?", r.file.Name(), r.line+1, maxRecord)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return Line{}, err
		}
		r.line++
		l, err := Parse(r.part[:len(r.part)-1])
		if err != nil {
			return Line{}, fmt.Errorf("%s:%d: %w", r.file.Name(), r.line, err)
		}
		return l, nil
	}
}

// truncated says whether the file has become shorter than what was read of it, and if so
// starts again at its beginning.
func (r *reader) truncated() (bool, error) {
	st, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	at, err := r.file.Seek(0, io.SeekCurrent)
	if err != nil || st.Size() >= at {
		return false, err
	}
	return true, r.seek(0)
}

// skipTo goes to where the last n lines since a time begin. It reads the file once and remembers
// n offsets: files are rotated before they are large, and the pages that it reads are needed next.
func (r *reader) skipTo(n int, since time.Time) error {
	var (
		starts []int64
		at     int64
		open   = map[Stream]bool{} // the stream's last record was not the end of a line
	)
	for {
		l, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !open[l.Stream] && !l.Time.Before(since) {
			starts = append(starts, at)
			if len(starts) > n {
				starts = starts[1:]
			}
		}
		open[l.Stream] = l.Partial
		at += int64(len(r.part))
	}
	if len(starts) > 0 {
		at = starts[0]
	}
	return r.seek(at)
}

// seek goes to the beginning of a record.
func (r *reader) seek(at int64) error {
	_, err := r.file.Seek(at, io.SeekStart)
	r.buf.Reset(r.file)
	r.part, r.line = r.part[:0], 0
	return err
}
