package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/spec"
	"github.com/coracle-project/coracle/pod/state"
	"github.com/coracle-project/coracle/shim/client"
)

// initPath is where a pod's init finds its program, and its args[0], by which the
// shim's binary knows what it is to be.
const initPath = "/coracle-pod-init"

// SharedPID returns a process in the PID namespace that the pod's containers share. It
// is the pod's init, which is started for the first container that shares: most pods
// have none, and a pod that only says it would costs no process.
func (ps *Pods) SharedPID(ctx context.Context, p *state.PodEntry) (pid int, err error) {
	err = ps.ops.Do(ctx, "init/"+p.ID, initLimit, func(ctx context.Context) error {
		if p.Get().InitPid != 0 {
			return nil
		}
		// The container that it is for has shown itself already, so a pod that
		// stops from here on waits for that one, and then ends the init.
		if err := p.Get().MustBeReady(); err != nil {
			return err
		}
		if err := p.Update(func(r *state.PodRecord) { r.Init = true }); err != nil {
			return err
		}
		if err := ps.FaultAt(ctx, faultInitRecorded); err != nil {
			return err
		}
		pid, err := ps.startInit(ctx, p)
		if err == nil {
			err = ps.FaultAt(ctx, faultInitStarted)
		}
		if err != nil {
			undo, cancel := life.Undoing(ctx)
			defer cancel()
			return errors.Join(err, ps.Exits.End(undo, p.ID, p.ID))
		}
		if err := p.Update(func(r *state.PodRecord) { r.InitPid = pid }); err != nil {
			return err
		}
		// An end before the record knew the init was not noted.
		s, err := ps.Shim.Status(ctx, p.ID, p.ID)
		if errors.Is(err, client.ErrNotFound) || err == nil && s.State == client.StateStopped {
			ps.InitExited(p)
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("pod init: %w", err)
	}
	if pid = p.Get().InitPid; pid == 0 {
		return 0, errdefs.Errorf(errdefs.ErrPrecondition, "pod %s: %s", p.ID, p.Get().Config.InitDied())
	}
	return pid, nil
}

// startInit runs the pod's init: the shim's own binary in an otherwise empty root, without any
// privilege, under the sandbox's seccomp and AppArmor profiles. It goes by the pod's id in the
// shim.
func (ps *Pods) startInit(ctx context.Context, e *state.PodEntry) (pid int, err error) {
	c, set := &e.Get().Config, e.Get().Namespaces
	handler, err := ps.Handlers.Of(c)
	if err != nil {
		return 0, err
	}
	bundle := filepath.Join(ps.Dirs.Pods().Of(e.ID), "init")
	root := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return 0, err
		}
	}
	if err := os.WriteFile(filepath.Join(root, initPath), nil, 0o755); err != nil {
		return 0, err
	}
	in := ocispec.Init{
		Root: root, Path: initPath, Binary: ps.ShimBinary,
		Namespaces: ocispec.Namespaces{
			Net: set.Net, IPC: set.IPC, UTS: set.UTS, HostNet: c.HostNetwork(), HostIPC: c.HostIPC(),
			User: set.User, UIDs: spec.Mappings(c.Namespaces.Users.UIDs), GIDs: spec.Mappings(c.Namespaces.Users.GIDs),
		},
		CgroupsPath: ps.Cgroups.SpecPath(c, e.ID),
		Identity:    ocispec.Identity{PodID: e.ID, PodName: c.Name, PodNamespace: c.Namespace, PodUID: c.UID},
		Foreign:     handler.Runtime != "",
		// A shim of virtual machines makes a machine of it.
		Unlimited:    handler.Sandboxed(),
		ProcessLabel: e.Get().Labels.Process,
	}
	if in.AppArmor, err = ps.AppArmor.Profile(ctx, c.AppArmor, false); err != nil {
		return 0, err
	}
	// A sandbox that asks for no filter gets the default one. It is our own program, which needs no
	// more.
	if in.Seccomp, err = spec.Seccomp(&c.Seccomp, ps.UnsetSeccomp); err != nil {
		return 0, err
	}
	made, err := ocispec.PodInit(in)
	if err != nil {
		return 0, errdefs.Errorf(errdefs.ErrInvalid, "%w", err)
	}
	if err := ocispec.Write(bundle, made); err != nil {
		return 0, err
	}
	done, err := ps.Shim.Launch(ctx, client.LaunchRequest{PodID: e.ID, ID: e.ID, Bundle: bundle, Handler: handler.Runtime})
	return done.Pid, err
}

// endInit kills the pod's init and has the shim forget it. It succeeds if there is none.
func (ps *Pods) endInit(ctx context.Context, e *state.PodEntry) error {
	if !e.Get().Init {
		return nil
	}
	return ps.Exits.End(ctx, e.ID, e.ID)
}

// InitExited makes a pod whose init died NotReady: its PID namespace is gone, and the
// processes in it. An init that did not come to hold anything is SharedPID's to undo.
func (ps *Pods) InitExited(e *state.PodEntry) {
	err := e.Observe(func(r *state.PodRecord) {
		if r.InitPid != 0 && r.Phase == state.PodReady {
			r.Phase = state.PodBroken
			ps.Log.Warn("pod is not ready", "pod", e.ID, "err", r.Config.InitDied())
		}
		r.InitPid = 0
	})
	state.LogUnrecorded(ps.Log, e.ID, err)
	ps.Exits.Happened(e.ID)
}
