package apiserver

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// listenError says what to do about an address that cannot be listened on.
func listenError(address string, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("something listens on %s already; stop it, or choose another --port", address)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%s is no address of this machine; choose another --bind-address", address)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("listening on %s is not permitted; choose a --port above 1023", address)
	default:
		return fmt.Errorf("cannot listen on %s: %w", address, err)
	}
}
