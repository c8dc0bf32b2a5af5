// Package queues keeps the work queues of client-go from waking the process while nothing is to do.
//
// A queue with a name updates two metrics twice a second, in a goroutine of its own, for as long as
// it exists. With some twenty queues of imported controllers that is a quarter of what an idle
// cluster costs. Without a provider of metrics no queue has such a goroutine. client-go has no way
// to ask for that once component-base is linked, whose provider sets itself when the program
// starts. So this package sets client-go's own provider, which does nothing, before that.
//
// The metrics workqueue_* are therefore not served.
package queues

import (
	_ "unsafe" // for go:linkname

	"k8s.io/client-go/util/workqueue"
)

// nothing is the provider that client-go starts with. Only a provider of its type, which is not
// exported, keeps queues from starting the goroutine.
//
//go:linkname nothing k8s.io/client-go/util/workqueue.globalMetricsProvider
var nothing workqueue.MetricsProvider

// The first provider stays. Packages are initialized in the order of their paths as soon as what
// they import is ("Package initialization" in the Go specification). So this one, which imports
// client-go's alone, comes before k8s.io/component-base.
func init() { workqueue.SetProvider(nothing) }
