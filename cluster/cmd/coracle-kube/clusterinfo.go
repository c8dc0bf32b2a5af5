package main

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/controllers/rootca"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/pki"
)

// withClusterInfo adds the part that publishes what other machines need to join, as an
// administrator would. A server that only this machine reaches has nothing to publish.
func withClusterInfo(server *apiserver.Server, bundle *pki.Bundle, api apiOptions, n nodeOptions, d dnsOptions,
	parts []func(context.Context) error,
) ([]func(context.Context) error, error) {
	url := api.settings().URL()
	if url == "" {
		return parts, nil
	}
	set, err := in(server, "system:coracle-joining", user.SystemPrivilegedGroup)
	if err != nil {
		return nil, err
	}
	ca, err := followAuthority(bundle.CACert)
	if err != nil {
		return nil, err
	}
	changed := make(chan struct{}, 1)
	ca.AddListener(rootca.Changed(func() {
		select {
		case changed <- struct{}{}:
		default: // it is noted
		}
	}))
	settings, err := agentSettings(api, n, d)
	if err != nil {
		return nil, err
	}
	publish := untilDone(server.Log(), "what other machines need to join is not published", func(ctx context.Context) error {
		succession, err := pki.ReadSuccession(bundle.Dir)
		if err != nil {
			return err
		}
		return clusterinfo.Publish(ctx, set.Kube, url, ca.CurrentCABundleContent(), succession.PEM, settings)
	})
	return append(parts, func(ctx context.Context) error {
		var following sync.WaitGroup
		defer following.Wait()
		following.Go(func() { ca.Run(ctx) })
		for {
			if err := publish(ctx); err != nil {
				return err
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
		}
	}), nil
}

// authorityFile is a file with the cluster's authority. Its listeners are told of changes while it
// runs.
type authorityFile struct {
	*dynamiccertificates.DynamicFileCAContent
}

func followAuthority(path string) (authorityFile, error) {
	f, err := dynamiccertificates.NewDynamicCAContentFromFile("cluster-authority", path)
	return authorityFile{f}, err
}

// Run follows the file until ctx ends.
func (f authorityFile) Run(ctx context.Context) { f.DynamicFileCAContent.Run(ctx, 1) }

// agentSettings are the flags of the cluster that each of its nodes follows.
func agentSettings(api apiOptions, n nodeOptions, d dnsOptions) (clusterinfo.Settings, error) {
	s := clusterinfo.Settings{
		Release:       version,
		ClusterDomain: n.domain, StubDomains: d.stubs, ServiceProxy: api.proxy, ExternalIPs: api.externalIPs, NetworkPolicies: api.policies,
		PodNetwork: n.podNetwork,
	}
	services, err := apiserver.ServiceNetworks(api.serviceCIDR)
	if err != nil {
		return s, err // check has said what is wrong
	}
	s.ServiceCIDRs = services
	if s.ClusterDNS, err = n.clusterDNS(services); err != nil {
		return s, err
	}
	ranges, err := api.podRanges()
	if err != nil {
		return s, err
	}
	s.PodCIDRs = ranges.Pods
	s.NodeDNS = len(s.ClusterDNS) > 0 && within(services, s.ClusterDNS[0])
	if !api.balancers.off() {
		s.LoadBalancerCIDRs = api.balancers.ranges
	}
	return s, nil
}
