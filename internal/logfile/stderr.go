package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Stderr returns where a program that the keeper starts writes its log. If its standard error is
// the file at path, or a removed file, the log is the file at path, limited to the size of a file
// in memory. Standard output and error then go to that file too, so that it gets the trace of a
// panic. If standard error is anything else, such as a terminal, Stderr returns it.
func Stderr(path string) (io.Writer, error) {
	if yes, err := isStderr(path); err != nil || !yes {
		return os.Stderr, err
	}
	l, err := open(path, memoryLimit, memoryKept)
	if err != nil {
		return os.Stderr, err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(l.f.Fd()), fd, 0); err != nil {
			return os.Stderr, errors.Join(fmt.Errorf("log to %s: %w", path, err), l.Close())
		}
	}
	return l, nil
}

func isStderr(path string) (bool, error) {
	is, err := os.Stderr.Stat()
	if err != nil || !is.Mode().IsRegular() {
		return false, nil // closed, or not a file
	}
	if st, ok := is.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
		return true, nil
	}
	named, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(is, named), err
}
