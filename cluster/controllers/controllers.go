// Package controllers is the list of the cluster's controllers: one line each, in New.
//
// A controller is a package next to this one whose New returns a *frame.Controller. To add one,
// write it in the shape of the smallest (clusterroleaggregation) and name it in New. Those that are
// imported are in package upstream, and start with the first object that needs them.
package controllers

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/metadata"
	tokens "k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/attachdetach"
	"github.com/coracle-project/coracle/cluster/controllers/bootstraptoken"
	"github.com/coracle-project/coracle/cluster/controllers/certificates"
	"github.com/coracle-project/coracle/cluster/controllers/clusterroleaggregation"
	"github.com/coracle-project/coracle/cluster/controllers/daemonset"
	"github.com/coracle-project/coracle/cluster/controllers/deployment"
	"github.com/coracle-project/coracle/cluster/controllers/endpoints"
	"github.com/coracle-project/coracle/cluster/controllers/endpointslice"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/garbagecollector"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
	"github.com/coracle-project/coracle/cluster/controllers/job"
	"github.com/coracle-project/coracle/cluster/controllers/loadbalancer"
	"github.com/coracle-project/coracle/cluster/controllers/localpath"
	"github.com/coracle-project/coracle/cluster/controllers/namespace"
	"github.com/coracle-project/coracle/cluster/controllers/nodelifecycle"
	"github.com/coracle-project/coracle/cluster/controllers/nodettl"
	"github.com/coracle-project/coracle/cluster/controllers/notactedon"
	"github.com/coracle-project/coracle/cluster/controllers/podgc"
	"github.com/coracle-project/coracle/cluster/controllers/policystatus"
	"github.com/coracle-project/coracle/cluster/controllers/replicaset"
	"github.com/coracle-project/coracle/cluster/controllers/resourcequota"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
	"github.com/coracle-project/coracle/cluster/controllers/serviceaccount"
	"github.com/coracle-project/coracle/cluster/controllers/servicecidr"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/unserved"
)

// Runner is a controller that works until ctx ends. The owner of its Set's informers starts them
// after the Runner was created.
type Runner interface {
	Run(ctx context.Context)
}

// Identities are what controllers act as. Their Sets share informers.
type Identities struct {
	// Manager is system:kube-controller-manager. It reads for informers that only one controller
	// uses: service accounts may not read all that informers read.
	Manager *client.Set
	// Account returns the Set of a service account in kube-system.
	Account func(name string) (*client.Set, error)
}

// Options is what controllers need besides the API. The zero value makes all controllers that can
// do without.
type Options struct {
	// Metadata reads objects of any kind; nil means a client of each controller's own identity.
	Metadata metadata.Interface
	// RootCA is what verifies the API server, published in every namespace; if it is nil nothing is
	// published.
	RootCA rootca.Authority
	// TokenGenerator signs tokens that do not expire, for Secrets of the type
	// kubernetes.io/service-account-token; if it is nil these stay empty.
	TokenGenerator tokens.TokenGenerator
	// SigningCA returns the authority that signs certificate requests, asked before each
	// signature; if it is nil none is signed.
	SigningCA func() (tls.Certificate, error)
	// CertificateLifetime bounds what SigningCA signs; 0 means a year.
	CertificateLifetime time.Duration
	// NodeMonitorGrace is how long a node may be silent; 0 means 50 seconds.
	NodeMonitorGrace time.Duration
	// Reserved are the names and addresses that no node's serving certificate may have.
	Reserved certificates.Reserved
	// Joinable is whether other machines reach the API server: then cluster-info is signed with
	// bootstrap tokens.
	Joinable bool
	// PodRanges says which networks nodes get for their pods; without any, none.
	PodRanges upstream.PodRanges
	// EndedPods is how many pods that have ended may exist; 0 means 12,500, less any number.
	EndedPods int
	// LoadBalancers says where addresses of Services of type LoadBalancer come from; if it is nil
	// they get none.
	LoadBalancers *loadbalancer.Options
	// LocalPath says where volumes of the provisioner local-path are on this node; if it is nil
	// none are made.
	LocalPath *localpath.Options
	// NamespaceSettle is how long other API servers need to notice that a namespace is being
	// deleted: 5 seconds where there are several, 0 with one.
	NamespaceSettle time.Duration
	// AutoscaleEvery is the time between two looks at a HorizontalPodAutoscaler; 0 means 15
	// seconds.
	AutoscaleEvery time.Duration
	// NotActedOn gets the objects that have no effect. It may be nil.
	NotActedOn *health.Part
	// Unserved are kinds that nothing acts on, in addition to those that no cluster acts on.
	Unserved unserved.Kinds
}

// BinderAccount is who makes and deletes PersistentVolumes.
const BinderAccount = "persistent-volume-binder"

// New returns all controllers, each with its own identity: upstream's service account of that name,
// whose rights upstream's bootstrap policy says.
func New(as Identities, o Options) ([]Runner, error) {
	if o.EndedPods == 0 {
		o.EndedPods = podgc.DefaultThreshold
	}
	finished, err := as.Account("ttl-after-finished-controller")
	if err != nil {
		return nil, fmt.Errorf("identity of ttl-after-finished-controller: %w", err)
	}
	// What several controllers write to a node at a time is written as one of them.
	nodes, err := as.Account("node-controller")
	if err != nil {
		return nil, fmt.Errorf("identity of node-controller: %w", err)
	}
	write := nodepatch.New(nodes.Kube.CoreV1().Nodes())
	observer := notactedon.New(as.Manager, o.Unserved, o.NotActedOn)
	all := slices.Concat(o.always(as.Manager, finished, observer, write), o.configured(as.Manager, write))
	runners := make([]Runner, 0, len(all)+2)
	runners = append(runners, observer)
	for _, e := range all {
		set, err := as.Account(e.account)
		if err != nil {
			return nil, fmt.Errorf("identity of %s: %w", e.account, err)
		}
		c, err := e.make(set)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.account, err)
		}
		runners = append(runners, c)
	}
	if o.TokenGenerator != nil { // it has no service account, as upstream: it makes the tokens of all accounts
		runners = append(runners, serviceaccount.NewTokens(as.Manager, o.TokenGenerator, o.RootCA))
	}
	return runners, nil
}

// always are the controllers that every cluster has.
func (o *Options) always(manager, finished *client.Set, observer *notactedon.Controller, write *nodepatch.Writer) []entry {
	reader := manager.Kube
	mapper := upstream.NewMapper(reader.Discovery())
	return []entry{
		{"deployment-controller", plain(deployment.New)},
		{"replicaset-controller", plain(replicaset.New)},
		{"daemon-set-controller", plain(daemonset.New)},
		{"job-controller", func(set *client.Set) (Runner, error) { return job.New(set, finished.Kube), nil }},
		{"endpoint-controller", plain(endpoints.New)},
		{"endpointslice-controller", plain(endpointslice.New)},
		{"namespace-controller", o.anyKind(func(set *client.Set, anything metadata.Interface) *frame.Controller {
			return namespace.New(set, anything, o.NamespaceSettle)
		})},
		{"generic-garbage-collector", o.anyKind(func(set *client.Set, anything metadata.Interface) *frame.Controller {
			return garbagecollector.New(set, anything, observer)
		})},
		{"service-account-controller", plain(serviceaccount.New)},
		{"node-controller", func(set *client.Set) (Runner, error) {
			return nodelifecycle.New(set, reader, write, o.NodeMonitorGrace)
		}},
		{"node-controller", func(set *client.Set) (Runner, error) { return nodelifecycle.NewEviction(set) }},
		{"pod-garbage-collector", func(set *client.Set) (Runner, error) { return podgc.New(set, max(o.EndedPods, 0)) }},
		{"resourcequota-controller", o.anyKind(resourcequota.New)},
		{"certificate-controller", func(set *client.Set) (Runner, error) {
			return certificates.NewApprover(set, reader, o.Reserved), nil
		}},
		{"certificate-controller", plain(certificates.NewCleaner)},
		{"clusterrole-aggregation-controller", plain(clusterroleaggregation.New)},
		{"token-cleaner", plain(bootstraptoken.New)},
		{"ttl-controller", plain(func(set *client.Set) *frame.Controller { return nodettl.New(set, write) })},
		{"service-cidrs-controller", plain(servicecidr.New)},
		{"validatingadmissionpolicy-status-controller", plain(policystatus.New)},
		{"statefulset-controller", plain(upstream.NewStatefulSet)},
		{"replication-controller", plain(upstream.NewReplication)},
		{"cronjob-controller", plain(upstream.NewCronJob)},
		{"ephemeral-volume-controller", plain(upstream.NewEphemeral)},
		{"resource-claim-controller", plain(upstream.NewResourceClaims)},
		{BinderAccount, plain(upstream.NewVolumeBinder)},
		{"attachdetach-controller", plain(attachdetach.New)},
		{"pvc-protection-controller", plain(upstream.NewClaimProtection)},
		{"pv-protection-controller", plain(upstream.NewVolumeProtection)},
		{"volumeattributesclass-protection-controller", plain(upstream.NewAttributesClassProtection)},
		{"endpointslicemirroring-controller", plain(upstream.NewMirroring)},
		{"disruption-controller", func(set *client.Set) (Runner, error) { return upstream.NewDisruption(set, mapper), nil }},
		{"horizontal-pod-autoscaler", func(set *client.Set) (Runner, error) {
			return upstream.NewAutoscaler(set, mapper, o.AutoscaleEvery), nil
		}},
	}
}

// configured are the controllers that some options ask for.
func (o *Options) configured(manager *client.Set, write *nodepatch.Writer) (all []entry) {
	if o.RootCA != nil {
		all = append(all, entry{"root-ca-cert-publisher", func(set *client.Set) (Runner, error) {
			return rootca.New(set, manager.Kube, o.RootCA), nil
		}})
	}
	if o.SigningCA != nil {
		all = append(all, entry{"certificate-controller", func(set *client.Set) (Runner, error) {
			return certificates.NewSigner(set, o.SigningCA, o.CertificateLifetime), nil
		}})
	}
	if o.Joinable {
		all = append(all, entry{"bootstrap-signer", func(set *client.Set) (Runner, error) { return upstream.NewBootstrapSigner(set), nil }})
	}
	if len(o.PodRanges.Pods) > 0 {
		all = append(all, entry{"node-controller", func(set *client.Set) (Runner, error) {
			return upstream.NewNodeIPAM(set, write, o.PodRanges), nil
		}})
	}
	if o.LoadBalancers != nil {
		all = append(all, entry{"service-controller", func(set *client.Set) (Runner, error) {
			return loadbalancer.New(set, *o.LoadBalancers), nil
		}})
	}
	if o.LocalPath != nil { // as upstream's provisioners in the same process
		all = append(all, entry{BinderAccount, func(set *client.Set) (Runner, error) {
			return localpath.New(set, *o.LocalPath), nil
		}})
	}
	return all
}

// entry is a controller and the service account that it acts as.
type entry struct {
	account string
	make    func(*client.Set) (Runner, error)
}

// plain is for constructors that need a Set only and cannot fail.
func plain[C Runner](make func(*client.Set) C) func(*client.Set) (Runner, error) {
	return func(set *client.Set) (Runner, error) { return make(set), nil }
}

// anyKind is for constructors of controllers that read and delete objects of any kind.
func (o *Options) anyKind(make func(*client.Set, metadata.Interface) *frame.Controller) func(*client.Set) (Runner, error) {
	return func(set *client.Set) (Runner, error) {
		if o.Metadata != nil {
			return make(set, o.Metadata), nil
		}
		anything, err := metadata.NewForConfig(metadata.ConfigFor(set.Config))
		if err != nil {
			return nil, fmt.Errorf("metadata client: %w", err)
		}
		return make(set, anything), nil
	}
}

// Run runs all of them and returns when ctx has ended and the last of them has.
func Run(ctx context.Context, all []Runner) {
	var running sync.WaitGroup
	for _, c := range all {
		running.Go(func() { c.Run(ctx) })
	}
	running.Wait()
}
