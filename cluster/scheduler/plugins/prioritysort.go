package plugins

import "github.com/coracle-project/coracle/cluster/scheduler/framework"

// prioritySort orders pods by priority, then by how long they have waited.
type prioritySort struct{}

func (prioritySort) Name() string { return "PrioritySort" }

func (prioritySort) Less(a, b *framework.QueuedPod) bool {
	pa, pb := a.Priority(), b.Priority()
	return pa > pb || pa == pb && a.Added.Before(b.Added)
}
