package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestExecInDividedCgroup: a container moves its init to another cgroup. Its own takes no process
// then, for it is gone, or has a controller for those below it.
func TestExecInDividedCgroup(t *testing.T) {
	root := "/sys/fs/cgroup"
	switch {
	case cgroups.IsCgroup2HybridMode():
		root += "/unified"
	case !cgroups.IsCgroup2UnifiedMode():
		testkit.Untested(t, "an exec into a divided cgroup: there is no unified hierarchy")
		return
	}
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state")})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, below := range map[string]bool{"divided": true, "gone": false} {
		t.Run(name, func(t *testing.T) {
			id := fmt.Sprintf("%s-%d", name, os.Getpid())
			spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x </dev/zero")
			c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
			if err != nil {
				t.Fatal(err)
			}
			init := c.Pid()
			own := filepath.Join(root, runtimetest.CgroupParent, id)
			inits := own + "-init"
			if below {
				inits = own + "/init"
			}
			defer func() {
				if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
					t.Error(err)
				}
				_, _ = runtimetest.Exit(init)
				_ = os.Remove(inits)
			}()
			if err := c.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(inits, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(inits+"/cgroup.procs", []byte(strconv.Itoa(init)), 0); err != nil {
				t.Fatal(err)
			}
			if below {
				if err := os.WriteFile(own+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
					testkit.Untested(t, "the kernel's EBUSY: the unified hierarchy has no controller (TestExecGoesWhereInitIs has a stand-in): %v", err)
					return
				}
			} else if err := os.Remove(own); err != nil {
				t.Fatal(err)
			}
			p := *spec.Process
			p.Args = []string{"/bin/sh", "-c", "read x </dev/zero"}
			pid, err := c.Exec(t.Context(), &p, runtime.ExecOptions{})
			if err != nil {
				t.Fatal(err)
			}
			in, err := cgroups.ParseCgroupFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if want, _ := filepath.Rel(root, inits); err != nil || in[""] != "/"+want {
				t.Errorf("the process is in %q, %v, and init in %q", in[""], err, want)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			_, _ = runtimetest.Exit(pid) // init's namespace would wait for this parent
		})
	}
}
