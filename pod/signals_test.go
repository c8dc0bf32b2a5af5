package pod

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSignalNamesSurviveTheWayBack(t *testing.T) {
	for n := syscall.Signal(1); n <= sigRTMax; n++ {
		name := SignalName(n)
		if n == 32 || n == 33 { // the C library's own
			if name != "" {
				t.Errorf("%d has the name %q", n, name)
			}
			continue
		}
		if back, err := parseSignal(name); err != nil || back != n {
			t.Errorf("%d became %q became %d, %v", n, name, back, err)
		}
	}
}

// Kubernetes allows all names of signal(7) in lifecycle.stopSignal: containers with the second
// names were refused.
func TestSecondNamesOfSignals(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGCLD": unix.SIGCHLD, "IOT": unix.SIGABRT, "sigpoll": unix.SIGIO} {
		if got, err := parseSignal(name); err != nil || got != want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}
