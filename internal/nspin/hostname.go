package nspin

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/ownthread"
)

// SetHostname gives a pinned UTS namespace a name again: CRIU overwrites it with that of the
// namespace that it saved.
func SetHostname(pin, name string) error {
	if len(name) > maxHostname {
		return fmt.Errorf("%w: host name of %d bytes is longer than %d", ErrInvalid, len(name), maxHostname)
	}
	return ownthread.Run(func() error {
		fd, err := unix.Open(pin, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open UTS namespace %s: %w", pin, err)
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("enter UTS namespace %s: %w", pin, err)
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return fmt.Errorf("set host name %q: %w", name, err)
		}
		return nil
	})
}
