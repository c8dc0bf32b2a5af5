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
	var opts runtime.CreateOptions
	if a == nil {
		return opts, nil
	}
	switch name := lastElement(a.TypeUrl); name {
	case "coracle.shim.v1.CreateOptions":
		var o api.CreateOptions
		if err := proto.Unmarshal(a.Value, &o); err != nil {
			return opts, fmt.Errorf("%w: options: %w", errInvalid, err)
		}
		rec.PodID, rec.Log, rec.LogPath, rec.LogDirectory = o.PodId, o.Log, o.LogPath, o.LogDirectory
		rec.LogFileBytes, rec.LogFiles = o.LogFileBytes, int(o.LogFiles)
		if err := rec.logLimit().check(); err != nil {
			return opts, err
		}
		if o.Log {
			rec.Stdin, rec.StdinOnce = o.Stdin, o.StdinOnce
		}
		opts.SystemdCgroup, opts.Handler = o.SystemdCgroup, o.Handler
	case "containerd.runc.v1.Options":
		var o options.Options
		if err := proto.Unmarshal(a.Value, &o); err != nil {
			return opts, fmt.Errorf("%w: options: %w", errInvalid, err)
		}
		opts.SystemdCgroup, opts.NoPivot, opts.NoNewKeyring = o.SystemdCgroup, o.NoPivotRoot, o.NoNewKeyring
	default:
		return opts, fmt.Errorf("%w: options of type %q", errInvalid, name)
	}
	rec.SystemdCgroup, rec.Handler = opts.SystemdCgroup, opts.Handler
	return opts, nil
}
