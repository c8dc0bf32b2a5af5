package cli

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// What the message with a pidfd says, as runc has it: whose process it is.
const (
	pidfdOfInit = "standard"
	pidfdOfExec = "setns"
)

// sendPidfd connects to the socket at path and sends it a pidfd of our child pid, which
// no one has reaped yet: the number cannot be another's. It does nothing for an empty path.
func sendPidfd(path, whose string, pid int) error {
	if path == "" {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	defer unix.Close(fd)
	sock, err := dialSocket("--pidfd-socket", path)
	if err != nil {
		return err
	}
	defer sock.Close()
	if err := unix.Sendmsg(int(sock.Fd()), []byte(whose), unix.UnixRights(fd), nil, 0); err != nil {
		return fmt.Errorf("send pidfd to --pidfd-socket %s: %w", path, err)
	}
	return nil
}
