package validate

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxMappings is the kernel's UID_GID_MAP_MAX_EXTENTS.
const maxMappings = 340

func checkMappings(field string, maps []specs.LinuxIDMapping) error {
	if len(maps) > maxMappings {
		return invalid(field, "has %d mappings, at most %d are allowed; join adjacent ones", len(maps), maxMappings)
	}
	for i, m := range maps {
		f := fmt.Sprintf("%s[%d]", field, i)
		if m.Size == 0 {
			return invalid(f+".size", "is 0, give how many ids are mapped")
		}
		const last = math.MaxUint32 // no id, so ranges end before it
		if uint64(m.ContainerID)+uint64(m.Size) > last || uint64(m.HostID)+uint64(m.Size) > last {
			return invalid(f, "%d ids from %d and %d go past the highest id", m.Size, m.ContainerID, m.HostID)
		}
	}
	if id, twice := overlap(maps, func(m specs.LinuxIDMapping) uint32 { return m.ContainerID }); twice {
		return invalid(field, "maps id %d of the container twice, let the ranges not overlap", id)
	}
	if id, twice := overlap(maps, func(m specs.LinuxIDMapping) uint32 { return m.HostID }); twice {
		return invalid(field, "maps id %d of the host twice, let the ranges not overlap", id)
	}
	return nil
}

// overlap finds the first id that is in two ranges.
func overlap(maps []specs.LinuxIDMapping, first func(specs.LinuxIDMapping) uint32) (uint32, bool) {
	if len(maps) < 2 {
		return 0, false
	}
	sorted := slices.SortedFunc(slices.Values(maps), func(a, b specs.LinuxIDMapping) int { return cmp.Compare(first(a), first(b)) })
	for i, m := range sorted[1:] {
		if before := sorted[i]; first(m)-first(before) < before.Size {
			return first(m), true
		}
	}
	return 0, false
}

// checkUserNamespace checks the mappings of a container.
func checkUserNamespace(l *specs.Linux) error {
	i := slices.IndexFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace })
	for _, list := range []struct {
		field string
		maps  []specs.LinuxIDMapping
	}{{"linux.uidMappings", l.UIDMappings}, {"linux.gidMappings", l.GIDMappings}} {
		switch {
		case i < 0 && len(list.maps) > 0:
			return invalid(list.field, "needs a user namespace, add one to linux.namespaces")
		case i >= 0 && l.Namespaces[i].Path == "" && len(list.maps) == 0:
			return invalid(list.field, "is missing, a new user namespace needs it; map some ids or leave the namespace out")
		}
		if err := checkMappings(list.field, list.maps); err != nil {
			return err
		}
		isRoot := func(m specs.LinuxIDMapping) bool { return m.ContainerID == 0 }
		if len(list.maps) > 0 && !slices.ContainsFunc(list.maps, isRoot) {
			return invalid(list.field, "does not map id 0 of the container, which makes its mounts; add a mapping for it")
		}
	}
	return nil
}
