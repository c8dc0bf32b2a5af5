package podconfig

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// Real-time signals as libc numbers them (signal(7)): the C library keeps the kernel's
// first two.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// aliases are the second names that signals have (signal(7)), and Kubernetes allows.
var aliases = map[string]syscall.Signal{"SIGCLD": unix.SIGCHLD, "SIGIOT": unix.SIGABRT, "SIGPOLL": unix.SIGIO}

// ParseSignal turns "SIGTERM", "TERM", "15", "SIGRTMIN+3" or "RTMAX-1" into a signal.
func ParseSignal(s string) (syscall.Signal, error) {
	bad := errdefs.Errorf(errdefs.ErrInvalid, "unknown signal %q", s)
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > sigRTMax {
			return 0, bad
		}
		return syscall.Signal(n), nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n := unix.SignalNum(name); n != 0 {
		return n, nil
	}
	if n, ok := aliases[name]; ok {
		return n, nil
	}
	for prefix, base := range map[string]int{"SIGRTMIN": sigRTMin, "SIGRTMAX": sigRTMax} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		off := 0
		if rest != "" {
			var err error
			if off, err = strconv.Atoi(rest); err != nil {
				return 0, bad
			}
		}
		if n := base + off; n >= sigRTMin && n <= sigRTMax {
			return syscall.Signal(n), nil
		}
	}
	return 0, bad
}

// SignalName is the name of a signal that parseSignal understands, "" if it has none. Real-time
// signals in the lower half are counted from the first one, the others from the last one, as bash's
// kill -l does.
func SignalName(s syscall.Signal) string {
	const middle = (sigRTMin + sigRTMax) / 2
	switch {
	case s == sigRTMin:
		return "SIGRTMIN"
	case s == sigRTMax:
		return "SIGRTMAX"
	case s > sigRTMin && s <= middle:
		return fmt.Sprintf("SIGRTMIN+%d", s-sigRTMin)
	case s > middle && s < sigRTMax:
		return fmt.Sprintf("SIGRTMAX-%d", sigRTMax-s)
	}
	return unix.SignalName(s)
}
