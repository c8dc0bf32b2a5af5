// Package transient repeats operations that failed for a reason that may pass. So a record does not
// count as damaged because this process had no free descriptor for a moment.
package transient

import (
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Waits is how often was waited. What is read in one go shares it, so that many files which stay
// unreadable do not hold up a start. The zero value is ready, also for several goroutines.
type Waits struct{ n atomic.Int32 }

// A start waits for half a second in total.
const (
	mostWaits = 10
	oneWait   = 50 * time.Millisecond
)

// Try repeats f while its error may pass.
func Try[T any](w *Waits, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || !Is(err) || !w.take() {
			return v, err
		}
		time.Sleep(oneWait)
	}
}

// take says whether to wait once more.
func (w *Waits) take() bool { return w.n.Load() < mostWaits && w.n.Add(1) <= mostWaits }

// Is says whether an error may pass. EIO is among them because of disks behind a network.
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
