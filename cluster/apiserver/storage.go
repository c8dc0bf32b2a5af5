package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/server/healthz"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/events"

	"github.com/coracle-project/coracle/cluster/apiserver/dataversion"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

const (
	// keyPrefix and specialPrefixes are upstream's layout of keys in etcd.
	keyPrefix = "/registry"
	// compactEvery is how often, and how long after they were replaced, old versions of objects are
	// dropped: a watch can go back this far. After a burst of changes it is a period of the watch
	// caches, once.
	compactEvery = 5 * time.Minute
	// deleteWorkers is how many objects of a collection are deleted at a time.
	deleteWorkers = 4
	dialTimeout   = 5 * time.Second
	healthTimeout = 2 * time.Second
)

var specialPrefixes = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                "controllers",
	{Resource: "endpoints"}:                             "services/endpoints",
	{Resource: "nodes"}:                                 "minions",
	{Resource: "services"}:                              "services/specs",
	{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
}

// store is where objects are kept: the etcd in this process, or another.
//
// For the one in this process each resource has a client that calls it directly. Upstream gives
// each resource, too, a client, with a connection of its own; those cost some 200 KiB each.
type store struct {
	factory serverstorage.StorageFactory
	config  storagebackend.Config
	// probe is a client for the server's own use.
	probe *clientv3.Client
	// direct makes a client of the etcd in this process; nil for another etcd.
	direct    func() *clientv3.Client
	compactor etcd3.Compactor
	// compact has the compactor not wait for its interval to end; nil for another etcd.
	compact func()
	caches  *caches
	// history is how many changes a watch cache keeps at most. That it cannot be bounded is logged
	// once.
	history   int
	unbounded sync.Once
	// encryption is nil if objects are stored as they are.
	encryption *encryption
	// members is the etcd in this process; nil for another.
	members *etcd.Server
	// close stops etcd and what was started with it.
	close func()
	// stopped is closed when the etcd in this process has stopped; nil for another.
	stopped <-chan struct{}
	log     *slog.Logger
}

// openStore starts etcd, or dials another.
func openStore(ctx context.Context, o *Options, served *serverstorage.ResourceConfig) (*store, error) {
	s := &store{config: *storagebackend.NewDefaultConfig(keyPrefix, nil), history: o.history, log: o.Log}
	s.config.DBMetricPollInterval = 0
	open := s.embedded
	if len(o.EtcdServers) > 0 {
		open = s.external
	}
	if o.EncryptionConfig != "" {
		var err error
		if s.encryption, err = openEncryption(ctx, o.EncryptionConfig, o.EncryptionHealth, o.Log); err != nil {
			return nil, err
		}
	}
	if err := open(ctx, o); err != nil {
		s.closeEncryption()
		return nil, err
	}
	if err := s.claim(ctx, dataversion.Own(o.Version)); err != nil {
		s.shut()
		return nil, err
	}
	f := serverstorage.NewDefaultStorageFactory(s.config, runtime.ContentTypeProtobuf, legacyscheme.Codecs,
		serverstorage.NewDefaultResourceEncodingConfig(legacyscheme.Scheme), served, specialPrefixes)
	f.AddCohabitatingResources(core.Resource("events"), events.Resource("events"))
	s.factory = encryptedFactory{f, s}
	return s, nil
}

// shut closes the store when no storage is used any more.
func (s *store) shut() {
	s.close()
	s.closeEncryption()
}

func (s *store) closeEncryption() {
	if s.encryption != nil {
		s.encryption.close()
	}
}

func (s *store) embedded(ctx context.Context, o *Options) error {
	peer := o.PKI.EtcdFiles()
	server, err := etcd.Start(ctx, etcd.Options{
		Dir: o.Root, State: o.State, Quota: o.EtcdQuota, Health: o.StoreHealth,
		PeerCA: peer.CACert, PeerPair: peer.Pair, APICA: o.PKI.CACert, APIPort: o.Port, MembersHealth: o.MembersHealth, Alone: o.LeavePeers,
		Log: o.Log,
	})
	if err != nil {
		return err
	}
	s.members = server
	// Of upstream's code only the allocator of node ports dials.
	s.config.Transport.ServerList = []string{server.Endpoint}
	s.config.CompactionInterval = 0
	s.direct, s.probe, s.stopped = server.Client, server.Client(), server.Stopped()
	hurried := &hurriedClock{}
	compactor := etcd3.NewCompactor(s.probe, o.compactEvery, hurried, nil)
	s.compactor, s.compact = compactor, hurried.hurry
	s.close = func() {
		compactor.Stop()
		_ = s.probe.Close()
		server.Close()
	}
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(ctx, named{s.probe}, storage.RequestWatchProgress)
	return nil
}

func (s *store) external(ctx context.Context, o *Options) error {
	s.config.Transport.ServerList = o.EtcdServers
	s.config.Transport.TrustedCAFile, s.config.Transport.CertFile, s.config.Transport.KeyFile = o.EtcdCA, o.EtcdCert, o.EtcdKey
	s.config.CompactionInterval = o.compactEvery
	config := clientv3.Config{Endpoints: o.EtcdServers, DialTimeout: dialTimeout, Logger: zap.NewNop()}
	if o.EtcdCA != "" || o.EtcdCert != "" {
		info := transport.TLSInfo{TrustedCAFile: o.EtcdCA, CertFile: o.EtcdCert, KeyFile: o.EtcdKey}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil {
			return fmt.Errorf("the files for TLS to etcd cannot be used: %w", err)
		}
	}
	var err error
	if s.probe, err = clientv3.New(config); err == nil {
		err = s.answers(ctx, dialTimeout)
	}
	if err != nil {
		return fmt.Errorf("etcd at %s does not answer (%w); check --etcd-servers and that it runs", strings.Join(o.EtcdServers, ", "), err)
	}
	s.close = func() { _ = s.probe.Close() }
	return nil
}

// answers asks etcd for a key, which it can only answer while it has a quorum.
func (s *store) answers(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := s.probe.Get(ctx, keyPrefix+"/health")
	return err
}

// health returns the check that etcd answers.
func (s *store) health() healthz.HealthChecker {
	return healthz.NamedCheck("etcd", func(r *http.Request) error { return s.answers(r.Context(), healthTimeout) })
}

// named gives a client that has no connection the endpoint by which upstream remembers what an etcd
// can do.
type named struct{ *clientv3.Client }

func (named) Endpoints() []string { return []string{"in-process"} }

// GetRESTOptions implements generic.RESTOptionsGetter for the built-in resources.
func (s *store) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := s.factory.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", resource, err)
	}
	// There are many Events, and few clients watch them. Levels of priority are hardly ever read.
	cached := resource.Resource != "events" && resource.Group != flowcontrolv1.GroupName
	return s.options(config, s.factory.ResourcePrefix(resource), cached), nil
}

func (s *store) options(config *storagebackend.ConfigForResource, prefix string, cached bool) generic.RESTOptions {
	return generic.RESTOptions{
		StorageConfig: config, ResourcePrefix: prefix, EnableGarbageCollection: true, DeleteCollectionWorkers: deleteWorkers,
		Decorator: s.decorator(cached),
	}
}

// decorator returns what makes a resource's storage, behind a watch cache or not.
func (s *store) decorator(behindCache bool) generic.StorageDecorator {
	return func(config *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error),
		newObject, newList func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		open := s.open
		if !behindCache {
			raw, closeRaw, err := open(config, newObject, newList, prefix)
			return raw, sync.OnceFunc(closeRaw), err // each subresource calls it
		}
		c, err := newCached(config.GroupResource, s.history, func(changed func()) (*generation, error) {
			raw, closeRaw, err := open(config, newObject, newList, prefix)
			if err != nil {
				return nil, err
			}
			watched, err := cacher.NewCacherFromConfig(cacher.Config{
				Storage: raw, Versioner: storage.APIObjectVersioner{}, GroupResource: config.GroupResource,
				EventsHistoryWindow: config.EventsHistoryWindow, ResourcePrefix: prefix,
				KeyFunc: func(o runtime.Object) (string, error) {
					changed() // upstream's cache asks for the key of each change
					return key(o)
				},
				NewFunc: newObject, NewListFunc: newList, GetAttrsFunc: attributes,
				IndexerFuncs: triggers, Indexers: indexers, Codec: config.Codec, Clock: s.clock(),
			})
			if err != nil {
				closeRaw()
				return nil, err
			}
			if !boundHistory(watched, s.history) {
				s.unbounded.Do(func() { s.log.Warn(unboundedHistory) })
			}
			return &generation{CacheDelegator: cacher.NewCacheDelegator(watched, raw), cache: watched, closeRaw: closeRaw}, nil
		})
		if err != nil {
			return nil, nil, err
		}
		return c, s.caches.add(c), nil
	}
}

// clock returns that of the watch caches.
func (s *store) clock() roundClock {
	if s.direct == nil {
		return roundClock{}
	}
	return roundClock{progress: nearProgressPause}
}

const unboundedHistory = "watch caches keep up to 75 seconds of changes: their history cannot be bounded in this version of k8s.io/apiserver"

// open opens a resource's storage, without a watch cache.
func (s *store) open(config *storagebackend.ConfigForResource, newObject, newList func() runtime.Object, prefix string,
) (storage.Interface, factory.DestroyFunc, error) {
	open := generic.NewRawStorage
	if s.direct != nil {
		open = s.openDirect
	}
	raw, closeRaw, err := open(config, newObject, newList, prefix)
	return fullStorage{raw}, closeRaw, err
}

// openDirect is generic.NewRawStorage for the etcd in this process.
func (s *store) openDirect(config *storagebackend.ConfigForResource, newObject, newList func() runtime.Object, prefix string,
) (storage.Interface, factory.DestroyFunc, error) {
	client := &kubernetes.Client{Client: s.direct()}
	client.Kubernetes = client
	versioner := storage.APIObjectVersioner{}
	raw, err := etcd3.New(client, s.compactor, config.Codec, newObject, newList, config.Prefix, prefix, config.GroupResource,
		config.Transformer, config.LeaseManagerConfig, etcd3.NewDefaultDecoder(config.Codec, versioner), versioner)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return raw, func() {
		raw.Close()
		_ = client.Close()
	}, nil
}

// custom is where objects of custom resources are kept: as JSON, under their group's name.
type custom struct{ *store }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (c custom) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := c.config
	config.Codec, config.Transformer = unstructured.UnstructuredJSONScheme, c.transformer(resource)
	return c.options(config.ForResource(resource), resource.Group+"/"+resource.Resource, true), nil
}

// definitions is where custom resource definitions are kept.
type definitions struct{ *store }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (d definitions) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := d.config
	config.Codec, config.Transformer = apiextensions.Codecs.LegacyCodec(apiextensionsv1.SchemeGroupVersion), d.transformer(resource)
	return d.options(config.ForResource(resource), resource.Group+"/"+resource.Resource, true), nil
}
