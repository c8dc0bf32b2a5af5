// Package controllers is the list of the cluster's controllers: one line each, in New.
//
// A controller is a package beside this one whose New returns a *frame.Controller. To add one,
// write it in the shape of the smallest (clusterroleaggregation) and name it in New.
package controllers

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/metadata"
	tokens "k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/bootstraptoken"
	"github.com/coracle-project/coracle/cluster/controllers/certificates"
	"github.com/coracle-project/coracle/cluster/controllers/clusterroleaggregation"
	"github.com/coracle-project/coracle/cluster/controllers/daemonset"
	"github.com/coracle-project/coracle/cluster/controllers/deployment"
	"github.com/coracle-project/coracle/cluster/controllers/endpoints"
	"github.com/coracle-project/coracle/cluster/controllers/endpointslice"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/garbagecollector"
	"github.com/coracle-project/coracle/cluster/controllers/job"
	"github.com/coracle-project/coracle/cluster/controllers/namespace"
	"github.com/coracle-project/coracle/cluster/controllers/nodelifecycle"
	"github.com/coracle-project/coracle/cluster/controllers/nodettl"
	"github.com/coracle-project/coracle/cluster/controllers/podgc"
	"github.com/coracle-project/coracle/cluster/controllers/policystatus"
	"github.com/coracle-project/coracle/cluster/controllers/replicaset"
	"github.com/coracle-project/coracle/cluster/controllers/resourcequota"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
	"github.com/coracle-project/coracle/cluster/controllers/serviceaccount"
	"github.com/coracle-project/coracle/cluster/controllers/servicecidr"
)

// Runner is a controller that works until ctx ends. The informers of the Set that it was made with
// have to be started, by whoever made them, after it was made.
type Runner interface {
	Run(ctx context.Context)
}

// Options is what controllers need beside the API. The zero value makes all controllers that can
// do without.
type Options struct {
	// Metadata reads objects of any kind; nil means a client made from the Set's Config.
	Metadata metadata.Interface
	// RootCA is the PEM of what verifies the API server, published in every namespace; if it is
	// empty nothing is published.
	RootCA []byte
	// TokenGenerator signs tokens that do not expire, for Secrets of the type
	// kubernetes.io/service-account-token; if it is nil these stay empty.
	TokenGenerator tokens.TokenGenerator
	// SigningCA returns the authority that signs certificate requests, asked before each
	// signature; if it is nil none is signed.
	SigningCA func() (tls.Certificate, error)
	// CertificateLifetime bounds what SigningCA signs; 0 means a year.
	CertificateLifetime time.Duration
	// EndedPods is how many pods that have ended may exist; 0 means 12,500, less any number.
	EndedPods int
	// NamespaceSettle is how long other API servers need to notice that a namespace is being
	// deleted: 5 seconds where there are several, 0 with one.
	NamespaceSettle time.Duration
}

// New returns all controllers, each working with set's identity. It makes no call.
func New(set *client.Set, o Options) ([]Runner, error) {
	if o.Metadata == nil {
		var err error
		if o.Metadata, err = metadata.NewForConfig(metadata.ConfigFor(set.Config)); err != nil {
			return nil, fmt.Errorf("metadata client: %w", err)
		}
	}
	if o.EndedPods == 0 {
		o.EndedPods = podgc.DefaultThreshold
	}
	pods, err := podgc.New(set, max(o.EndedPods, 0))
	if err != nil {
		return nil, err
	}
	nodes, err := nodelifecycle.New(set)
	if err != nil {
		return nil, err
	}
	evictions, err := nodelifecycle.NewEviction(set)
	if err != nil {
		return nil, err
	}
	all := []*frame.Controller{
		deployment.New(set),
		replicaset.New(set),
		daemonset.New(set),
		job.New(set),
		endpoints.New(set),
		endpointslice.New(set),
		namespace.New(set, o.Metadata, o.NamespaceSettle),
		garbagecollector.New(set, o.Metadata),
		serviceaccount.New(set),
		nodes,
		evictions,
		pods,
		resourcequota.New(set, o.Metadata),
		certificates.NewApprover(set),
		certificates.NewCleaner(set),
		clusterroleaggregation.New(set),
		bootstraptoken.New(set),
		nodettl.New(set),
		servicecidr.New(set),
		policystatus.New(set),
	}
	if len(o.RootCA) > 0 {
		all = append(all, rootca.New(set, o.RootCA))
	}
	if o.TokenGenerator != nil {
		all = append(all, serviceaccount.NewTokens(set, o.TokenGenerator, o.RootCA))
	}
	if o.SigningCA != nil {
		all = append(all, certificates.NewSigner(set, o.SigningCA, o.CertificateLifetime))
	}
	runners := make([]Runner, 0, len(all))
	for _, c := range all {
		runners = append(runners, c)
	}
	return runners, nil
}

// Run runs all of them and returns when ctx has ended and the last of them has.
func Run(ctx context.Context, all []Runner) {
	var running sync.WaitGroup
	for _, c := range all {
		running.Go(func() { c.Run(ctx) })
	}
	running.Wait()
}
