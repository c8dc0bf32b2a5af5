package upstream

import (
	"context"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"

	"github.com/coracle-project/coracle/cluster/client"
)

const (
	// remapEvery is how often the kinds of the API are looked up again, in case one is served in
	// another version (upstream's value).
	remapEvery = 30 * time.Second
	// missAgain is how old an answer has to be to look again for a kind that it lacks. client-go's
	// mapper would not look again at all: a kind defined a moment ago would be unknown for up to
	// remapEvery.
	missAgain = 2 * time.Second
)

// Mapper finds the resources of kinds, also of custom ones. It asks the API when it is first used.
// Controllers share one, and keep it up to date while they run.
type Mapper struct {
	*restmapper.DeferredDiscoveryRESTMapper
}

// NewMapper returns a Mapper of the kinds that api knows. It makes no call.
func NewMapper(api discovery.DiscoveryInterface) *Mapper {
	return &Mapper{restmapper.NewDeferredDiscoveryRESTMapper(&aging{CachedDiscoveryInterface: cacheddiscovery.NewMemCacheClient(api)})}
}

// keep forgets what is old until ctx ends.
func (m *Mapper) keep(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { m.Reset() }, remapEvery)
}

// scales returns a client of scale subresources, of any kind that has one.
func (m *Mapper) scales(set *client.Set) (scale.ScalesGetter, error) {
	config := rest.CopyConfig(set.Config) // NewForConfig changes it
	return scale.NewForConfig(config, m, dynamic.LegacyAPIPathResolverFunc, scale.NewDiscoveryScaleKindResolver(set.Kube.Discovery()))
}

// aging is discovery whose answers are worth another look, after a while, if they lack something.
type aging struct {
	discovery.CachedDiscoveryInterface
	answered atomic.Pointer[time.Time]
}

// ServerGroupsAndResources implements discovery.DiscoveryInterface. A mapper calls it once after
// each Reset.
func (a *aging) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	defer func() {
		now := time.Now()
		a.answered.Store(&now)
	}()
	return a.CachedDiscoveryInterface.ServerGroupsAndResources()
}

// Fresh implements discovery.CachedDiscoveryInterface: false has the mapper look again for what it
// does not find.
func (a *aging) Fresh() bool {
	answered := a.answered.Load()
	return a.CachedDiscoveryInterface.Fresh() && answered != nil && time.Since(*answered) < missAgain
}
