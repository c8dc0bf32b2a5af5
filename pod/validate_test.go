package pod

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/state"
)

// What is wrong with a configuration is found out before anything is done.
func TestBadConfigurationsDoNothing(t *testing.T) {
	b := newBench(t)
	m, _ := b.manager()
	bad := podConfig("p")
	bad.Name = "a/b"
	if id, err := m.Run(t.Context(), bad); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("pod: got %q, %v", id, err)
	}
	if len(b.calls) != 3 { // what recovery asks for
		t.Errorf("bad input led to calls: %v", b.calls)
	}
	b.nothingLeft()
	podID := must[string](t)(m.Run(t.Context(), podConfig("p")))
	before := len(b.calls)
	c := containerConfig("run")
	c.Name = "a/b"
	if id, err := m.Create(t.Context(), podID, c); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("container: got %q, %v", id, err)
	}
	if len(b.calls) != before {
		t.Errorf("bad input led to calls: %v", b.calls[before:])
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}

// What is wrong with a container in its pod, or on this host. What is wrong with its configuration
// alone is tested in package podconfig.
func TestBadContainers(t *testing.T) {
	b := newBench(t)
	img := b.images["busybox"]
	img.Config.Entrypoint = nil
	b.images["nothing-to-run"] = img
	img.Config.User = "nobody"
	b.images["unknown-user"] = img
	m, _ := b.manager()
	cfg := podConfig("p")
	cfg.LogDirectory = t.TempDir()
	podID := must[string](t)(m.Run(t.Context(), cfg))
	file := filepath.Join(cfg.LogDirectory, "file")
	ok(t, os.WriteFile(file, []byte("{"), 0o600))
	for name, tc := range map[string]struct {
		change func(c *podconfig.Container)
		kind   error
	}{
		"unknown image":         {func(c *podconfig.Container) { c.Image = "nginx" }, errdefs.ErrNotFound},
		"nothing to run":        {func(c *podconfig.Container) { c.Image, c.Command = "nothing-to-run", nil }, errdefs.ErrInvalid},
		"log path below a file": {func(c *podconfig.Container) { c.LogPath = "file/x.log" }, errdefs.ErrInvalid},
		"log path is directory": {func(c *podconfig.Container) { c.LogPath = "." }, errdefs.ErrInvalid},
		"host path below a file": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", HostPath: file + "/x"}}
		}, errdefs.ErrInvalid},
		"image volume of no image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "none"}}
		}, errdefs.ErrNotFound},
		"sub-path that is not in the image": {func(c *podconfig.Container) {
			c.Mounts = []podconfig.Mount{{ContainerPath: "/x", Image: "busybox", ImageSubPath: "none"}}
		}, errdefs.ErrInvalid},
		"device that is none": {func(c *podconfig.Container) { c.Devices = []podconfig.Device{{HostPath: file}} }, errdefs.ErrInvalid},
		"unknown device": {func(c *podconfig.Container) {
			c.Devices = []podconfig.Device{{HostPath: "/dev/none"}}
		}, errdefs.ErrInvalid},
		"cdi device that is not there": {func(c *podconfig.Container) { c.CDIDevices = []string{"a.example/b=c"} }, errdefs.ErrPrecondition},
		"unknown user":                 {func(c *podconfig.Container) { c.Security.User.Name = "nobody" }, errdefs.ErrInvalid},
		"unknown user of image":        {func(c *podconfig.Container) { c.Image = "unknown-user" }, errdefs.ErrInvalid},
		"no seccomp file": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "/none"}
		}, errdefs.ErrInvalid},
		"seccomp no file": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: "/"}
		}, errdefs.ErrInvalid},
		"seccomp not json": {func(c *podconfig.Container) {
			c.Security.Seccomp = podconfig.Seccomp{Type: podconfig.ProfileLocalhost, Localhost: file}
		}, errdefs.ErrInvalid},
		"apparmor form":                   {func(c *podconfig.Container) { c.Security.AppArmor = "x" }, errdefs.ErrInvalid},
		"privileged in a pod that is not": {func(c *podconfig.Container) { c.Security.Privileged = true }, errdefs.ErrInvalid},
		"user namespace in a pod without": {func(c *podconfig.Container) {
			c.Security.Namespaces.User, c.Security.Namespaces.Users = podconfig.NamespacePod, someUsers(0, 1000)
		}, errdefs.ErrInvalid},
	} {
		c := containerConfig("run")
		tc.change(&c)
		if id, err := m.Create(t.Context(), podID, c); !errors.Is(err, tc.kind) {
			t.Errorf("%s: got %q, %v", name, id, err)
		}
	}
	if n := len(slices.Collect(m.Containers(state.ContainerFilter{}))); n != 0 {
		t.Errorf("%d containers", n)
	}
	ok(t, m.Stop(t.Context(), podID))
	if _, err := m.Create(t.Context(), podID, containerConfig("run")); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("in a stopped pod: %v", err)
	}
	ok(t, m.Remove(t.Context(), podID))
	idle(t, m)
	b.nothingLeft()
}
