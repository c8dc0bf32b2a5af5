package lc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// CRIU answers with no more than that it has failed; why is in its log, which lies among files that
// are removed with what has failed.

// criuLog is where CRIU logs.
type criuLog string

// The names are libcontainer's.
func dumpLog(o runtime.ImageOptions) criuLog    { return newCRIULog(o, "dump.log") }
func restoreLog(o runtime.ImageOptions) criuLog { return newCRIULog(o, "restore.log") }

// newCRIULog removes the log of an earlier run, which must not be taken for one of this.
func newCRIULog(o runtime.ImageOptions, name string) criuLog {
	dir := o.WorkDir
	if dir == "" {
		dir = o.ImageDir
	}
	path := filepath.Join(dir, name)
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return "" // nor can CRIU write there
	}
	return criuLog(path)
}

// explain adds to an error what CRIU has logged as such.
func (l criuLog) explain(err error) error {
	if err == nil {
		return nil
	}
	said := l.errors()
	if len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w; CRIU says in %s: %s", err, filepath.Base(string(l)), strings.Join(said, "; "))
}

// What explain takes: the first error is the cause, those after it what came of it.
const (
	maxCRIUErrors    = 4
	maxCRIUErrorText = 300
	maxCRIULog       = 64 << 20
)

// errors are the first lines of the form "(00.012345) 1: Error (criu/mount.c:42): text", without
// time and process.
func (l criuLog) errors() []string {
	f, err := os.OpenFile(string(l), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	var out []string
	lines := bufio.NewReader(io.LimitReader(f, maxCRIULog))
	for len(out) < maxCRIUErrors {
		line, err := lines.ReadSlice('\n') // the beginning of a long one, and then its rest
		if _, text, ok := bytes.Cut(line, []byte("Error (")); ok {
			out = append(out, "Error ("+printable(text[:min(len(text), maxCRIUErrorText)]))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return out
		}
	}
	return out
}

// printable is text that may be part of an error: a checkpoint, which may be anybody's, names files
// and mounts.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, string(bytes.TrimSpace(text)))
}
