package containerlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
)

// The kubelet looks at the sizes of logs every ten seconds, in which a container writes
// gigabytes. A log with a limit is therefore rotated by its writer, before a write that
// would exceed it: the oldest files go first, so that all of them together never take
// more than the limit's product, and a kill between any two steps leaves no more.
//
// Names are the kubelet's (0.log.20060102-150405), which then finds, reads, packs and
// removes the files like those that it has set aside itself.

// Limit bounds the files of a log; the zero value does not.
type Limit struct {
	FileBytes int64 // of each file
	Files     int   // with the one that is written
}

// Check returns ErrInvalid if no log can have the limit.
func (l Limit) Check() error {
	if l == (Limit{}) || l.FileBytes >= api.MinLogBytes && l.Files >= 2 {
		return nil
	}
	return fmt.Errorf("%w: log limited to %d files of %d bytes: at least 2 files of %d bytes are needed", ErrInvalid, l.Files, l.FileBytes,
		api.MinLogBytes)
}

// maxLogFile is the size at which a log without a limit is rotated. The kubelet rotates it much
// earlier. Where the kubelet does not run, or is configured not to rotate, one container would
// otherwise fill everyone's disk.
const maxLogFile = 1 << 30

// full reports whether n more bytes make a file of size exceed the size of times files.
func (l *Log) full(size int64, n int, times int64) bool {
	limit := l.limit.FileBytes
	if limit == 0 {
		limit = l.most
	}
	return size > 0 && (size+int64(n)-1)/times >= limit
}

// exhausted reports whether a call failed because descriptors or memory are used up. It may succeed
// later.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// errLogFull asks for a rotation.
var errLogFull = errors.New("log file is full")

// noteWithin is how quickly a file has to be full for the next one to begin with a note. Who
// follows a log by its name skips a file if it takes longer to read than to write; the
// kubelet, which rotates no sooner, has those readers see all.
const noteWithin = 10 * time.Second

// rotate continues in a new file if n bytes do not fit into this one. For keep see Reopen.
func (l *Log) rotate(n int, keep func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := markOf(l.f)
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if !l.full(m.offset, n, 1) {
		return nil // the other stream was quicker
	}
	aside := ""
	if l.hasName(m) {
		if err := l.prune(m.offset); err != nil {
			return err
		}
		if err := faultAt(faultLogPruned); err != nil {
			return err
		}
		err := l.place.rotating(func(path string) (err error) {
			if aside, err = setAside(path, time.Now()); errors.Is(err, os.ErrNotExist) {
				return nil // the kubelet was quicker
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := faultAt(faultLogRenamed); err != nil {
			return err
		}
	} else if err := l.prune(0); err != nil { // the kubelet has renamed it, and is about to say so
		return err
	}
	f, err := l.place.open()
	if err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	now := time.Now()
	if took := now.Sub(l.begun); aside != "" && took < noteWithin {
		// Less than a page, so written whole or not at all. Without it all goes on.
		_, _ = f.Write(rotationNote(now, took, aside))
	}
	if err := faultAt(faultLogOpened); err != nil {
		f.Close()
		return err
	}
	l.goOn(f, keep)
	return nil
}

func rotationNote(now time.Time, took time.Duration, aside string) []byte {
	return fmt.Appendf(nil, "%s stderr F [coracle: the log was full after %s and goes on here; what came before is in %s]\n",
		now.Format(logTime), took.Round(time.Millisecond), filepath.Base(aside))
}

// hasName says whether the log's name still is that of its file.
func (l *Log) hasName(m logMark) bool {
	var st unix.Stat_t
	return unix.Lstat(l.path, &st) == nil && uint64(st.Dev) == m.dev && st.Ino == m.ino
}

// cutShort says that an earlier shim was killed while it rotated the log, or before the kubelet,
// which had renamed it, had it opened again.
func (l *Log) cutShort() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, err := markOf(l.f)
	// Without a limit, the kubelet may have renamed the file and not want it reopened yet. At this
	// size it was a shim.
	rotates := l.limit != (Limit{}) || err == nil && l.whole(m.offset)
	return rotates && err == nil && !l.hasName(m)
}

// whole reports whether a file without a limit has reached the size at which it is rotated.
func (l *Log) whole(size int64) bool { return l.full(size, 2*maxRecords, 1) }

// rotating is at for the steps of a rotation. Their errors name the log, not the descriptor by
// which f gets to it.
func (p Place) rotating(f func(path string) error) error {
	return p.at(func(path string) error {
		err := f(path)
		var (
			one  *fs.PathError
			link *os.LinkError
		)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &one):
			err = fmt.Errorf("%s: %w", one.Op, one.Err)
		case errors.As(err, &link):
			err = fmt.Errorf("%s: %w", link.Op, link.Err)
		}
		return fmt.Errorf("rotate log %s: %w", p.path(), err)
	})
}

// prune removes the oldest files that were set aside, so that the log stays within its limit with a
// whole new file, and with the current one, of that size, if it is about to be set aside (0: it is
// not).
func (l *Log) prune(size int64) error {
	if l.limit == (Limit{}) && size == 0 {
		return nil
	}
	return l.place.rotating(func(path string) error {
		if l.limit == (Limit{}) {
			return l.pruneWhole(path)
		}
		return l.pruneTo(path, size)
	})
}

// pruneTo is prune for a log with a limit.
func (l *Log) pruneTo(path string, size int64) error {
	old, err := asideOf(path)
	if err != nil {
		return err
	}
	files := l.limit.Files - 1
	room := int64(files)
	if size > 0 {
		files--
	}
	sum := size
	for _, f := range old {
		sum += f.size
	}
	// Rounded up, because the limit's product may be more than an int64 holds.
	for len(old) > 0 && (len(old) > files || (sum+room-1)/room > l.limit.FileBytes) {
		if err := os.Remove(old[0].path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		sum -= old[0].size
		old = old[1:]
	}
	return nil
}

// pruneWhole removes the full files that were set aside of a log without a limit. One full file is
// kept, next to the current one. Smaller files belong to the kubelet, which keeps as many as it is
// configured to.
func (l *Log) pruneWhole(path string) error {
	old, err := asideOf(path)
	if err != nil {
		return err
	}
	for _, f := range old {
		if !l.whole(f.size) {
			continue
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// asideFile is a file that was set aside, by us or by the kubelet.
type asideFile struct {
	path string
	time time.Time // in its name: what clocks on the wall showed, as if they were in UTC
	size int64
}

// asideTime is what follows the name of a log that was set aside, in local time, as the kubelet has
// it.
const asideTime = "20060102-150405"

// asideOf returns them, the oldest first. Other files that begin like the log are someone else's.
func asideOf(path string) ([]asideFile, error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(dir) // by name, and so by time
	if err != nil {
		return nil, err
	}
	var old []asideFile
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), base+".")
		if !ok {
			continue
		}
		at, err := time.Parse(asideTime, strings.TrimSuffix(stamp, ".gz")) // the kubelet's, packed
		if err != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if info.Mode().IsRegular() {
			old = append(old, asideFile{dir + e.Name(), at, info.Size()})
		}
	}
	return old, nil
}

// setAside renames the log at path and returns its new name, which sorts behind those of all other
// files that were set aside: within one second, or after the clock was set back, it has a time to
// come.
func setAside(path string, now time.Time) (string, error) {
	old, err := asideOf(path)
	if err != nil {
		return "", err
	}
	at, err := time.Parse(asideTime, now.Format(asideTime))
	if err != nil {
		return "", err
	}
	for _, f := range old {
		if !at.After(f.time) {
			at = f.time.Add(time.Second)
		}
	}
	to := path + "." + at.Format(asideTime)
	if err := os.Rename(path, to); err != nil {
		return "", err
	}
	return to, nil
}
