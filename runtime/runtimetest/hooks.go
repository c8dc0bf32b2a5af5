package runtimetest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// hook appends a name to a file and saves the state it got on stdin.
func hook(file, name string) specs.Hook {
	return specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > " + file + "." + name + "; echo " + name + " >> " + file}}
}

var hookTests = map[string]func(*rig){
	"hooks run in order with the state": func(r *rig) {
		spec := r.spec("true")
		log := filepath.Join(r.bundle, "hooks.log")
		spec.Hooks = &specs.Hooks{
			CreateRuntime: []specs.Hook{hook(log, "createRuntime")},
			Poststart:     []specs.Hook{hook(log, "poststart")},
			Poststop:      []specs.Hook{hook(log, "poststop")},
		}
		c := r.create(spec, runtime.Stdio{})
		r.logIs(log, "createRuntime")
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.logIs(log, "createRuntime poststart")
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		r.logIs(log, "createRuntime poststart poststop")
		data, err := os.ReadFile(log + ".poststop")
		r.must(err)
		var state specs.State
		r.must(json.Unmarshal(data, &state))
		if state.ID != c.ID() || state.Status != specs.StateStopped || state.Bundle != r.bundle {
			r.Errorf("the poststop hook got %s", data)
		}
	},

	"a failing hook after delete is only a warning, and the next one runs": func(r *rig) {
		spec := r.spec("true")
		log := filepath.Join(r.bundle, "hooks.log")
		spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/no/such/hook"}, hook(log, "poststop")}}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Start(r.Context()))
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		r.logIs(log, "poststop")
	},

	"a failing hook after start ends the container": func(r *rig) {
		spec := r.spec("sleep 1000")
		spec.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/bin/false"}}}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		if err := c.Start(r.Context()); err == nil {
			r.Error("Start succeeded")
		}
		r.wait(pid)
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
	},

	"a create that is cancelled half way leaves nothing": func(r *rig) {
		spec := r.spec("true")
		reached, goOn := filepath.Join(r.bundle, "reached"), filepath.Join(r.bundle, "go-on")
		r.must(unix.Mkfifo(reached, 0o600))
		r.must(unix.Mkfifo(goOn, 0o600))
		spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{
			Path: "/bin/sh", Args: []string{"sh", "-c", "echo > " + reached + "; read x < " + goOn},
		}}}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			_, err := r.engine.Create(ctx, idOf(spec), spec, runtime.CreateOptions{Bundle: r.bundle})
			failed <- err
		}()
		_, err := os.ReadFile(reached)
		r.must(err)
		cancel()
		// For reading, too: the hook may have been killed.
		f, err := os.OpenFile(goOn, os.O_RDWR, 0)
		r.must(err)
		defer f.Close()
		_, err = f.Write([]byte("\n"))
		r.must(err)
		r.wantErr(<-failed, context.Canceled)
		_, err = r.engine.Load(r.Context(), idOf(spec))
		r.wantErr(err, runtime.ErrNotFound)
	},

	"a hook that hangs is killed at its timeout": func(r *rig) {
		spec := r.spec("true")
		timeout := 1
		spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: &timeout}}}
		c := r.create(spec, runtime.Stdio{})
		pid := c.Pid()
		r.must(c.Delete(r.Context(), runtime.DeleteOptions{}))
		r.wait(pid)
	},
}

func (r *rig) logIs(file, want string) {
	r.Helper()
	data, err := os.ReadFile(file)
	r.must(err)
	if got := strings.Join(strings.Fields(string(data)), " "); got != want {
		r.Fatalf("hooks that ran: %q, want %q", got, want)
	}
}
