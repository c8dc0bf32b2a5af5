package podconfig

import (
	"fmt"
	"path"

	"github.com/opencontainers/cgroups/systemd"
)

// Cgroups says where the cgroups of pods and containers are.
type Cgroups struct {
	Driver CgroupDriver
	// Root is the parent for pods that name none: a path, or a slice under Systemd.
	Root string
}

// SpecPath is where the container's cgroup goes, as its specification says it. Without a parent
// there is no directory per pod: it would hold no limits, cost a mkdir in every hierarchy, and be
// ours to remove.
func (g Cgroups) SpecPath(c *Pod, id string) string {
	parent := g.parent(c)
	if g.Driver == Systemd {
		return path.Base(parent) + ":coracle:" + id
	}
	return path.Join("/", parent, id)
}

func (g Cgroups) parent(c *Pod) string {
	if c.CgroupParent == "" {
		return g.Root
	}
	return c.CgroupParent
}

// Container is the path of a container's cgroup.
func (g Cgroups) Container(c *Pod, id string) (string, error) {
	if g.Driver != Systemd {
		return g.SpecPath(c, id), nil
	}
	slice, err := systemd.ExpandSlice(path.Base(g.parent(c)))
	if err != nil {
		return "", fmt.Errorf("cgroup of container %s: %w", id, err)
	}
	return path.Join(slice, "coracle-"+id+".scope"), nil
}

// Pod is the path of the cgroup that the caller has made for the pod, "" if it has made none.
func (g Cgroups) Pod(c *Pod) (string, error) {
	if c.CgroupParent == "" {
		return "", nil
	}
	if g.Driver != Systemd {
		return path.Join("/", c.CgroupParent), nil
	}
	slice, err := systemd.ExpandSlice(path.Base(c.CgroupParent))
	if err != nil {
		return "", fmt.Errorf("cgroup of the pod: %w", err)
	}
	return slice, nil
}
