package runtimetest

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
)

var badTests = map[string]func(*rig){
	"bad ids": func(r *rig) {
		for _, id := range []string{"", ".", "..", "a/b", "a b", "ä", strings.Repeat("x", runtime.MaxIDLength+1)} {
			_, err := r.engine.Create(r.Context(), id, r.spec("true"), runtime.CreateOptions{Bundle: r.bundle})
			r.wantErr(err, runtime.ErrInvalidID)
			_, err = r.engine.Load(r.Context(), id)
			r.wantErr(err, runtime.ErrInvalidID)
		}
	},

	"an unknown id": func(r *rig) {
		_, err := r.engine.Load(r.Context(), "nobody")
		r.wantErr(err, runtime.ErrNotFound)
	},

	"an invalid spec": func(r *rig) {
		for what, spoil := range map[string]func(*specs.Spec){
			"no args":          func(s *specs.Spec) { s.Process.Args = nil },
			"no root":          func(s *specs.Spec) { s.Root.Path = "nowhere" },
			"unknown sysctl":   func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.no_such": "1"} },
			"ns of no kind":    func(s *specs.Spec) { s.Linux.Namespaces[0].Type = "nope" },
			"bad propagation":  func(s *specs.Spec) { s.Linux.RootfsPropagation = "nope" },
			"no such ns path":  func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/no/such/namespace" },
			"unmapped in root": func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{Size: 1}} },
		} {
			spec := r.spec("true")
			spoil(spec)
			_, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
			if err == nil {
				r.Errorf("%s: create succeeded", what)
			} else {
				r.wantErr(err, runtime.ErrInvalidSpec)
			}
		}
	},

	"a create that fails half way leaves nothing": func(r *rig) {
		for what, spoil := range map[string]func(*specs.Spec){
			"no such program": func(s *specs.Spec) { s.Process.Args = []string{"/no/such/program"} },
			"no such source": func(s *specs.Spec) {
				s.Mounts = append(s.Mounts, specs.Mount{Destination: "/x", Source: "/no/such/dir", Options: []string{"bind"}})
			},
			"failing hook": func(s *specs.Spec) {
				s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false"}}}
			},
		} {
			spec := r.spec("true")
			spoil(spec)
			if _, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle}); err == nil {
				r.Errorf("%s: create succeeded", what)
			}
			_, err := r.engine.Load(r.Context(), idOf(spec))
			r.wantErr(err, runtime.ErrNotFound)
			r.checkLeaks()
		}
	},

	"a cgroup that is in use is refused and its processes live": func(r *rig) {
		c, pid := r.running()
		spec := r.spec("true")
		spec.Linux.CgroupsPath = CgroupParent + "/" + c.ID()
		_, err := r.engine.Create(r.Context(), r.id(), spec, runtime.CreateOptions{Bundle: r.bundle})
		r.wantErr(err, runtime.ErrInvalidSpec)
		// The parent is empty itself, but what is below it would be killed too.
		spec.Linux.CgroupsPath = CgroupParent
		_, err = r.engine.Create(r.Context(), r.id(), spec, runtime.CreateOptions{Bundle: r.bundle})
		r.wantErr(err, runtime.ErrInvalidSpec)
		r.status(c, specs.StateRunning)
		r.end(c, pid)
	},

	"an id that exists": func(r *rig) {
		c, pid := r.running()
		spec := Spec(c.ID(), "/bin/true")
		spec.Linux.CgroupsPath += "-other"
		_, err := r.engine.Create(r.Context(), c.ID(), spec, runtime.CreateOptions{Bundle: r.bundle})
		r.wantErr(err, runtime.ErrExists)
		r.status(c, specs.StateRunning)
		r.end(c, pid)
	},

	"a relative bundle": func(r *rig) {
		spec := r.spec("true")
		if _, err := r.engine.Create(r.Context(), idOf(spec), spec, runtime.CreateOptions{Bundle: "here"}); err == nil {
			r.Fatal("create succeeded")
		}
	},
}
