// Package client is what every component of the cluster process is given to reach the API:
// a client of its own identity, and the informers that all components of the process share.
//
// One process runs all components by default, so each object is decoded and kept once, however many
// components look at it. Objects read from an informer are shared: make a DeepCopy to change one.
// managedFields are dropped before an object is kept, since no component reads them and they are
// often half of it.
package client

import (
	"cmp"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Set is one component's view of the API. Its fields are safe for concurrent use.
type Set struct {
	// Config is the component's own identity; copy it before changing it.
	Config *rest.Config
	// Kube is a client of that identity, speaking protobuf.
	Kube kubernetes.Interface
	// Informers are shared with the other components of the process. A component asks for its
	// informers when it is created, and the factory's owner starts it afterwards.
	Informers informers.SharedInformerFactory
	// Log gets the component's errors and warnings; nil discards them.
	Log *slog.Logger
}

// Logger returns Log, or a logger that discards everything.
func (s *Set) Logger() *slog.Logger { return cmp.Or(s.Log, slog.New(slog.DiscardHandler)) }

// New returns a Set for the identity in config, over informers. It makes no call. log may be nil.
func New(config *rest.Config, shared informers.SharedInformerFactory, log *slog.Logger) (*Set, error) {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Set{Config: config, Kube: kube, Informers: shared, Log: log}, nil
}

// NewInformers returns the informers that components share, reading as kube's identity. They never
// resync: everything a component does is caused by an event or by a timer of its own.
func NewInformers(kube kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(dropManagedFields))
}

func dropManagedFields(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil && m.GetManagedFields() != nil {
		m.SetManagedFields(nil)
	}
	return obj, nil
}
