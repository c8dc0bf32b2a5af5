package crilog

import (
	"errors"
	"io"
	"time"
)

// lastLines is where the last n lines since a time begin. It reads the file once and remembers
// n offsets: files are rotated before they are large, and the pages that it reads are needed next.
func (r *reader) lastLines(n int, since time.Time, odd func(error)) (int64, error) {
	var (
		starts []int64
		open   = map[Stream]bool{} // the stream's last Line was not the end of a line
		end    int64               // of the last record that is whole
	)
	for {
		l, err := r.next(false)
		if !r.inside {
			end = r.at + int64(r.size)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if _, is := errors.AsType[oddRecord](err); is && odd != nil {
			continue
		}
		if err != nil {
			return 0, err
		}
		if !open[l.Stream] && !l.Time.Before(since) {
			starts = append(starts, r.at)
			if len(starts) > n {
				starts = starts[1:]
			}
		}
		open[l.Stream] = l.Partial
	}
	if len(starts) > 0 {
		return starts[0], nil
	}
	return end, nil
}

// lastRecords is where the last n records begin, whatever they are. It reads only these.
func (r *reader) lastRecords(n int) (int64, error) {
	at, err := r.file.Seek(0, io.SeekEnd)
	if err != nil || n <= 0 {
		return at, err
	}
	var buf [16 << 10]byte
	for at > 0 {
		size := min(at, int64(len(buf)))
		if _, err := r.file.ReadAt(buf[:size], at-size); err != nil {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if buf[i] != '\n' {
				continue
			}
			if n == 0 {
				return at - size + i + 1, nil
			}
			n--
		}
		at -= size
	}
	return 0, nil
}
