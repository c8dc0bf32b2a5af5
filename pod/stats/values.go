package stats

import (
	"time"

	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/network"
)

// Container is one reading of a container's use.
type Container struct {
	ID, PodID string
	cgstat.Usage
	// CPURate is the nanoseconds of CPU time per second since the reading before; nil if
	// this is the first.
	CPURate *uint64
	// Writable layer.
	DiskTime              time.Time
	DiskBytes, DiskInodes uint64
}

// Pod is one reading of a pod's use. Usage is that of the pod's own cgroup, or else the
// sum of its running containers.
type Pod struct {
	ID string
	cgstat.Usage
	CPURate *uint64 // as in Container
	// Interfaces has the pod's own first; none on the host's network.
	NetworkTime time.Time
	Interfaces  []InterfaceUsage
	Containers  []Container // that run
}

// InterfaceUsage is what has gone through an interface of a pod.
type InterfaceUsage = network.InterfaceUsage

// PodFilter chooses pods; zero fields match all.
type PodFilter struct {
	ID     string
	Labels map[string]string
}
