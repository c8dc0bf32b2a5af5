package crilog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// reader reads the records of one file, which may grow.
type reader struct {
	file       *os.File
	buf        [64 << 10]byte // writers cut lines at 16 KiB; peers' at a megabyte at most
	start, end int            // of buf, what was read of the file and is not handed on
	at         int64          // offset in the file of what was handed on last
	size       int            // and its size
	inside     bool           // the last piece did not end its record
	head       Line           // what the current record begins with
	odd        bool           // the current record is malformed
	ended      int            // records that were read to their end
}

// oddRecord is the error of a malformed record.
type oddRecord struct{ error }

// open opens a log. A volume may show its directory to a container, which could put a device of the
// host in the log's place, whose open alone may act. So the file is found with O_PATH, which opens
// nothing, and the same file is opened if it is a regular one.
func open(path string) (*reader, error) {
	fail := func(err error) (*reader, error) { return nil, &os.PathError{Op: "open", Path: path, Err: err} }
	found, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return fail(err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return fail(unix.EISDIR)
	default:
		return fail(errors.New("not a regular file"))
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", found), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	return &reader{file: os.NewFile(uintptr(fd), path)}, nil
}

func (r *reader) close() { _ = r.file.Close() }

// next returns the next record, or the next piece of a long one. It returns io.EOF if there is
// none yet, and an oddRecord once for what is no record; its successor is read next. If last, no
// more is expected, and a record without its newline is returned as a piece.
func (r *reader) next(last bool) (Line, error) {
	for {
		piece, err := r.piece(last)
		if err != nil {
			return Line{}, err
		}
		begins := !r.inside
		text, whole := bytes.CutSuffix(piece, []byte{'\n'})
		if r.inside = !whole; whole {
			r.ended++
		}
		l := r.head
		if begins {
			l, err = Parse(text)
			r.head, r.odd = l, err != nil
		}
		if err != nil {
			if len(piece) == len(r.buf) {
				err = fmt.Errorf("a record of more than %d bytes: %w", len(r.buf), err)
			}
			return Line{}, oddRecord{fmt.Errorf("%s:%d: %w", r.file.Name(), r.number(), err)}
		}
		if r.odd {
			continue // the rest of it
		}
		if !begins {
			l.Text = text
		}
		l.Partial = l.Partial || !whole
		return l, nil
	}
}

// number is that of the record that was handed on last, for errors.
func (r *reader) number() int {
	if r.inside {
		return r.ended + 1
	}
	return r.ended
}

// piece returns the next record or, if it does not fit the buffer, its next piece, with the
// newline if there is one.
func (r *reader) piece(last bool) ([]byte, error) {
	for searched := r.start; ; {
		if i := bytes.IndexByte(r.buf[searched:r.end], '\n'); i >= 0 {
			return r.take(searched + i + 1), nil
		}
		if r.start == 0 && r.end == len(r.buf) {
			return r.take(r.end), nil
		}
		r.end = copy(r.buf[:], r.buf[r.start:r.end])
		r.start, searched = 0, r.end
		n, err := r.file.Read(r.buf[r.end:])
		r.end += n
		if n > 0 {
			continue
		}
		if err == io.EOF && last && r.end > 0 {
			return r.take(r.end), nil
		}
		return nil, err
	}
}

// take hands on the buffer up to there.
func (r *reader) take(end int) []byte {
	piece := r.buf[r.start:end]
	r.start, r.at, r.size = end, r.at+int64(r.size), len(piece)
	return piece
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

// seek goes to the beginning of a record.
func (r *reader) seek(at int64) error {
	_, err := r.file.Seek(at, io.SeekStart)
	r.start, r.end, r.at, r.size = 0, 0, at, 0
	r.inside, r.ended = false, 0
	return err
}
