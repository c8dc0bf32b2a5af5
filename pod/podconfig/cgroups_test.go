package podconfig

import "testing"

func TestCgroupPaths(t *testing.T) {
	for name, c := range map[string]struct {
		driver         CgroupDriver
		parent         string
		container, pod string
	}{
		"cgroupfs":              {Cgroupfs, "", "/coracle/c1", ""},
		"cgroupfs, with parent": {Cgroupfs, "/kubepods/pod1", "/kubepods/pod1/c1", "/kubepods/pod1"},
		"systemd":               {Systemd, "", "/system.slice/coracle-c1.scope", ""},
		"systemd, with parent": {
			Systemd, "kubepods-burstable-pod1.slice",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/coracle-c1.scope",
			"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := Cgroups{Driver: c.driver, Root: "/coracle"}
			if c.driver == Systemd {
				g.Root = "system.slice"
			}
			container, cerr := g.Container(&Pod{CgroupParent: c.parent}, "c1")
			pod, perr := g.Pod(&Pod{CgroupParent: c.parent})
			if cerr != nil || perr != nil {
				t.Fatal(cerr, perr)
			}
			if container != c.container || pod != c.pod {
				t.Errorf("%q and %q, want %q and %q", container, pod, c.container, c.pod)
			}
		})
	}
}
