// Package transient repeats operations that failed for a reason that may pass. So a record does not
// count as damaged because this process had no free descriptor for a moment.
package transient

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Waits counts the waits so far. All files read in one pass share it, so that many unreadable files
// do not delay a start. The zero value is ready.
type Waits int

// A start waits for half a second in total.
const (
	mostWaits = 10
	oneWait   = 50 * time.Millisecond
)

// Try repeats f while its error may pass.
func Try[T any](w *Waits, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || !Is(err) || *w >= mostWaits {
			return v, err
		}
		*w++
		time.Sleep(oneWait)
	}
}

// Is reports whether an error may pass. EIO may, because of disks on a network.
func Is(err error) bool {
	return Scarce(err) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EIO)
}

// Scarce reports whether the cause is a shortage in the machine or this process, and not the file
// to be read.
func Scarce(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
