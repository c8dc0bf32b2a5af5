package plugins

import "github.com/coracle-project/coracle/cluster/scheduler/framework"

// PrioritySort orders pods by priority, then by how long they have waited.
type PrioritySort struct{}

func (PrioritySort) Name() string { return "PrioritySort" }

func (PrioritySort) Less(a, b *framework.QueuedPod) bool {
	pa, pb := a.Priority(), b.Priority()
	return pa > pb || pa == pb && a.Added.Before(b.Added)
}
