package convert

import (
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cri/field"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// spelling is how the wire's enum spells real-time signals, which have a sign in
// their names elsewhere.
var (
	spelling     = strings.NewReplacer("MINPLUS", "MIN+", "MAXMINUS", "MAX-")
	wireSpelling = strings.NewReplacer("MIN+", "MINPLUS", "MAX-", "MAXMINUS")
)

// signalPrefix is what all names of the wire's enum begin with.
const signalPrefix = "SIGNAL_"

// signalName converts a stop signal to its usual name, "" for the image's own.
func signalName(s runtimeapi.Signal) (string, error) {
	name, ok := runtimeapi.Signal_name[int32(s)]
	if !ok {
		return "", field.Invalid("config.stop_signal", "unknown signal %d", s)
	}
	if s == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
		return "", nil
	}
	return spelling.Replace(strings.TrimPrefix(name, signalPrefix)), nil
}

// signalNumber converts back; a name that the wire has no value for is the default.
func signalNumber(name string) runtimeapi.Signal {
	return runtimeapi.Signal(runtimeapi.Signal_value[signalPrefix+wireSpelling.Replace(name)])
}

// stopSignal is the signal that stops a container: under the name that was asked for, which may be
// one of two for the same signal, else by the number that the image, or no one, has chosen. The
// kubelet takes the default for a runtime that cannot tell.
func stopSignal(c *pod.Container) runtimeapi.Signal {
	if c.Config.StopSignal != "" {
		return signalNumber(c.Config.StopSignal)
	}
	return signalNumber(podconfig.SignalName(c.StopSignal))
}
