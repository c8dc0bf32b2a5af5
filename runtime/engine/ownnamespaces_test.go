package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestAlone makes one container after the other, with and without namespaces that the starter
// makes ahead: each has its own, or the host's, and none those of another.
func TestAlone(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state"), Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	kinds := []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace}
	seen := map[string]bool{}
	for i := range 6 {
		id := fmt.Sprintf("alone-%d-%d", os.Getpid(), i)
		spec := runtimetest.Spec(id, "/bin/sleep", "1000")
		spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/true"}}}
		if i%3 == 1 {
			var rest []specs.LinuxNamespace
			for _, ns := range spec.Linux.Namespaces {
				if ns.Type == specs.PIDNamespace || ns.Type == specs.MountNamespace || ns.Type == specs.CgroupNamespace {
					rest = append(rest, ns)
				}
			}
			spec.Linux.Namespaces, spec.Hostname = rest, ""
			spec.Mounts = spec.Mounts[:4] // no mqueue or sysfs
		}
		if i%3 == 2 {
			spec.Process.Cwd = "/bin/busybox" // it fails when the namespaces are there
		}
		c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: bundle})
		if i%3 == 2 {
			if err == nil {
				t.Fatal("a file is a working directory")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		pid := c.Pid()
		for _, kind := range kinds {
			file := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.IPCNamespace: "ipc", specs.UTSNamespace: "uts"}[kind]
			own := readlink(t, fmt.Sprintf("/proc/%d/ns/%s", pid, file))
			host := readlink(t, "/proc/self/ns/"+file)
			if (own == host) != (i%3 == 1) {
				t.Errorf("container %d: %s is %s, the host's is %s", i, kind, own, host)
			}
			if own != host && seen[own] {
				t.Errorf("container %d: %s %s was another container's", i, kind, own)
			}
			seen[own] = true
			// Held, or an older kernel gives its number to the next one.
			held, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
		}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		child, err := c.Exec(t.Context(), runtimetest.Spec(id, "/bin/true").Process, runtime.ExecOptions{})
		if err != nil {
			t.Fatal(err)
		}
		await(t, child)
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		await(t, pid)
	}
}

// TestAloneWithMappedMount has the starter make a second child, the owner of a mount's ids, before
// the container's own.
func TestAloneWithMappedMount(t *testing.T) {
	bundle := runtimetest.Bundle(t)
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state"), Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := fmt.Sprintf("alone-%d-mapped", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1000, Size: 10}}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: "/mapped", Source: t.TempDir(), Type: "bind", Options: []string{"bind"}, UIDMappings: ids, GIDMappings: ids,
	})
	c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: bundle})
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if own, host := readlink(t, fmt.Sprintf("/proc/%d/ns/net", pid)), readlink(t, "/proc/self/ns/net"); own == host {
		t.Error("the container is in the host's network namespace")
	}
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	await(t, pid)
}

func readlink(t *testing.T, path string) string {
	t.Helper()
	s, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Mapping the owners of files takes a process in a user namespace, which the starter has to make
// without its own namespaces.
func TestAloneWithMappedVolume(t *testing.T) {
	e, err := engine.New(engine.Config{StateDir: filepath.Join(t.TempDir(), "state"), Alone: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	id := fmt.Sprintf("alone-mapped-%d", os.Getpid())
	spec := runtimetest.Spec(id, "/bin/true")
	ids := []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}
	spec.Mounts = append(spec.Mounts, specs.Mount{Destination: "/v", Type: "bind", Source: t.TempDir(), UIDMappings: ids, GIDMappings: ids})
	c, err := e.Create(t.Context(), id, spec, runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	pid := c.Pid()
	if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
		t.Error(err)
	}
	await(t, pid)
}
