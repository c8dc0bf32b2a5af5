package podconfig

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
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
		if back, err := ParseSignal(name); err != nil || back != n {
			t.Errorf("%d became %q became %d, %v", n, name, back, err)
		}
	}
}

// Kubernetes allows all names of signal(7) in lifecycle.stopSignal: containers with the second
// names were refused.
func TestSecondNamesOfSignals(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"SIGCLD": unix.SIGCHLD, "IOT": unix.SIGABRT, "sigpoll": unix.SIGIO} {
		if got, err := ParseSignal(name); err != nil || got != want {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

func TestSignals(t *testing.T) {
	for s, want := range map[string]int{
		"SIGTERM": 15, "term": 15, "9": 9, "SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMAX-1": 63, "64": 64,
	} {
		if got, err := ParseSignal(s); err != nil || int(got) != want {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "0", "65", "-1", "SIG", "SIGRTMIN+31", "SIGRTMAX+1", "SIGRTMIN+x", "SIGRTMIN-1"} {
		if got, err := ParseSignal(s); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
}

func TestSysctlNames(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward": "net.ipv4.ip_forward", "net/ipv4/ip_forward": "net.ipv4.ip_forward",
		"net/ipv4/conf/eth0.1/forwarding": "net.ipv4.conf.eth0/1.forwarding",
	} {
		if got := dotted(name); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
