package convert

import (
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestSignalsSurviveTheWayBack(t *testing.T) {
	for n := range runtimeapi.Signal_name {
		name, err := signalName(runtimeapi.Signal(n))
		if err != nil {
			t.Fatal(err)
		}
		if back := signalNumber(name); back != runtimeapi.Signal(n) {
			t.Errorf("%d became %q became %d", n, name, back)
		}
	}
	if signalNumber("15") != runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		t.Error("a number is not the default")
	}
}

// The kubelet takes the default for a runtime that cannot tell: the image's signal, and SIGTERM
// where no one has said anything, were reported as that.
func TestStopSignalThatWasNotAskedFor(t *testing.T) {
	for n, want := range map[syscall.Signal]runtimeapi.Signal{
		syscall.SIGTERM: runtimeapi.Signal_SIGNAL_SIGTERM,
		syscall.SIGQUIT: runtimeapi.Signal_SIGNAL_SIGQUIT,
		37:              runtimeapi.Signal_SIGNAL_SIGRTMINPLUS3,
		50:              runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS14,
		32:              runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT, // CRI has no name for it
	} {
		if got := ContainerStatus(&pod.Container{StopSignal: n}).StopSignal; got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	// One signal, two names: the one that was asked for.
	c := pod.Container{Config: podconfig.Container{StopSignal: "SIGPOLL"}, StopSignal: syscall.SIGIO}
	if got := ContainerStatus(&c).StopSignal; got != runtimeapi.Signal_SIGNAL_SIGPOLL {
		t.Errorf("SIGPOLL: %s", got)
	}
}

// Every signal that CRI can ask for has a name for its number, too.
func TestEverySignalIsReported(t *testing.T) {
	for n := syscall.Signal(1); n <= 64; n++ {
		got := ContainerStatus(&pod.Container{StopSignal: n}).StopSignal
		if (got == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT) != (n == 32 || n == 33) {
			t.Errorf("%d: %s", n, got)
		}
	}
}
