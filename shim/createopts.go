package shim

import (
	"fmt"

	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/api"
)

// createOptions reads the options of a Create request: Coracle's own, containerd's for
// runc, or none.
func createOptions(a *anypb.Any, rec *record) (runtime.CreateOptions, error) {
	if a == nil {
		return runtime.CreateOptions{}, nil
	}
	switch name := lastElement(a.TypeUrl); name {
	case "coracle.shim.v1.CreateOptions":
		var o api.CreateOptions
		if err := proto.Unmarshal(a.Value, &o); err != nil {
			return runtime.CreateOptions{}, fmt.Errorf("%w: options: %w", errInvalid, err)
		}
		return optionsOf(&o, rec)
	case "containerd.runc.v1.Options":
		var o options.Options
		if err := proto.Unmarshal(a.Value, &o); err != nil {
			return runtime.CreateOptions{}, fmt.Errorf("%w: options: %w", errInvalid, err)
		}
		rec.SystemdCgroup = o.SystemdCgroup
		return runtime.CreateOptions{SystemdCgroup: o.SystemdCgroup, NoPivot: o.NoPivotRoot, NoNewKeyring: o.NoNewKeyring}, nil
	default:
		return runtime.CreateOptions{}, fmt.Errorf("%w: options of type %q", errInvalid, name)
	}
}

// optionsOf reads Coracle's own options; nil has none.
func optionsOf(o *api.CreateOptions, rec *record) (runtime.CreateOptions, error) {
	rec.PodID, rec.Log, rec.LogPath, rec.LogDirectory = o.GetPodId(), o.GetLog(), o.GetLogPath(), o.GetLogDirectory()
	rec.LogFileBytes, rec.LogFiles = o.GetLogFileBytes(), int(o.GetLogFiles())
	if err := rec.logLimit().Check(); err != nil {
		return runtime.CreateOptions{}, err
	}
	if o.GetLog() {
		rec.Stdin, rec.StdinOnce = o.GetStdin(), o.GetStdinOnce()
	}
	rec.SystemdCgroup, rec.Handler = o.GetSystemdCgroup(), o.GetHandler()
	return runtime.CreateOptions{SystemdCgroup: rec.SystemdCgroup, Handler: rec.Handler}, nil
}
