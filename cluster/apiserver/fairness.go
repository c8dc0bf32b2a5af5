package apiserver

import (
	"context"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	flowcontrolapply "k8s.io/client-go/applyconfigurations/flowcontrol/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// defaultSeats is how many requests are worked on at a time, of all clients together: upstream's
// limits for requests that read and that write, together.
const defaultSeats = 600

// shareFairly has upstream's priority and fairness decide which requests are worked on. Its levels
// are upstream's defaults and fixed: nodes, system users, service accounts and all others each have
// seats that the others cannot take, and within a level users take turns. Objects of the API of
// these levels are stored and change nothing. The seats of requests that ask for large lists are
// not weighed by the number of objects.
func shareFairly(c *genericapiserver.Config, seats int) {
	c.StorageObjectCountTracker = uncounted{}
	all := values(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations)
	if seats == 0 {
		seats = defaultSeats
	} else {
		borrowNothing(all)
	}
	levels := informers.NewSharedInformerFactory(nil, 0)
	fix(levels, &flowcontrolv1.PriorityLevelConfiguration{}, &flowcontrolv1.PriorityLevelConfigurationList{Items: all})
	fix(levels, &flowcontrolv1.FlowSchema{}, &flowcontrolv1.FlowSchemaList{Items: values(
		bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas)})
	c.FlowControl = flowing{flowcontrol.New(levels, unwritten{}, seats), levels}
}

// borrowNothing has each level keep to its own seats. Upstream decides every 10 s which level
// borrows.
func borrowNothing(levels []flowcontrolv1.PriorityLevelConfiguration) {
	for i := range levels {
		level := levels[i].DeepCopy() // the original is upstream's variable
		if level.Spec.Limited != nil {
			level.Spec.Limited.BorrowingLimitPercent = ptr.To[int32](0)
		}
		levels[i] = *level
	}
}

// flowing starts what its levels are read by when it runs.
type flowing struct {
	flowcontrol.Interface
	levels informers.SharedInformerFactory
}

// Run implements flowcontrol.Interface.
func (f flowing) Run(stop <-chan struct{}) error {
	f.levels.Start(stop)
	defer f.levels.Shutdown()
	// Upstream polls every 100 ms, beginning at once, for these informers to be synced. Until then all
	// users but administrators have the seats of one level.
	f.levels.WaitForCacheSyncWithContext(wait.ContextForChannel(stop))
	return f.Interface.Run(stop)
}

// fix makes factory's informer for the kind of example deliver the objects of list, forever.
func fix(factory informers.SharedInformerFactory, example, list runtime.Object) {
	source := fixed{list}
	factory.InformerFor(example, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	})
}

// fixed is a [cache.ListerWatcher] of objects that never change.
type fixed struct{ list runtime.Object }

func (f fixed) List(metav1.ListOptions) (runtime.Object, error) { return f.list, nil }

func (fixed) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }

// IsWatchListSemanticsUnSupported has objects listed, not streamed.
func (fixed) IsWatchListSemanticsUnSupported() bool { return true }

func values[T any](lists ...[]*T) []T {
	var all []T
	for _, list := range lists {
		for _, v := range list {
			all = append(all, *v)
		}
	}
	return all
}

// unwritten takes the statuses of FlowSchemas, which exist in memory only.
type unwritten struct {
	flowcontrolclient.FlowcontrolV1Interface
	flowcontrolclient.FlowSchemaInterface
}

func (u unwritten) FlowSchemas() flowcontrolclient.FlowSchemaInterface { return u }

func (unwritten) ApplyStatus(context.Context, *flowcontrolapply.FlowSchemaApplyConfiguration,
	metav1.ApplyOptions,
) (*flowcontrolv1.FlowSchema, error) {
	return nil, nil
}

// uncounted knows of no number of objects, so that each list counts as one request. Counting would
// ask etcd once a minute for each kind.
type uncounted struct{}

func (uncounted) Set(string, storage.Stats) {}

func (uncounted) Get(string) (storage.Stats, error) {
	return storage.Stats{}, flowcontrolrequest.ObjectCountNotFoundErr
}

func (uncounted) RunUntil(<-chan struct{}) {}
