package main

import (
	"context"
	"crypto/tls"
	"net/netip"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/imagepeers"
	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/policy"
	"github.com/coracle-project/coracle/cluster/proxy"
)

// nodeProcess says what runs on a node next to coracled, in the cluster's process or in an agent.
type nodeProcess struct {
	nodeOptions
	names dnsOptions
	// root is the directory for what outlives a reboot, port the API server's, by which tables in
	// the kernel are named.
	root string
	port int
	// services are the networks of Services, none if they are not known.
	services []netip.Prefix
	// pods are the networks that nodes get parts of for their pods; none if the cluster gives none.
	pods      []netip.Prefix
	balancers balancerOptions
	// proxy, externalIPs and policies are whether connections to Services are routed, also to
	// externalIPs, and NetworkPolicies enforced.
	proxy, externalIPs, policies bool
	// forgetNodes is set in the cluster's process, which removes from the status of policies what
	// nodes reported that are gone.
	forgetNodes bool
	// as returns how a part acts: in the cluster's process each has an identity of its own, in an
	// agent all are the node. policyAPI is how the policies read and write ClusterNetworkPolicies,
	// nil for as their Set does.
	as        func(name string, groups ...string) (*client.Set, error)
	policyAPI *rest.Config
	// certFile and clientCA are the kubelet's credentials, serving its certificate in an agent.
	certFile, clientCA string
	serving            func() *tls.Certificate
	// layers says by which certificates nodes pass layers of images on to each other; zero where
	// there is one node only.
	layers imagepeers.Options
	// localPath is the directory of volumes that this process provisions, "" for none. reserved are
	// ports that pods do not get.
	localPath string
	reserved  map[int]string
	// awaitRanges is whether the cluster gives nodes networks for their pods.
	awaitRanges bool
	// dnsElsewhere is whether the cluster's DNS is not in nodes' processes.
	dnsElsewhere bool
	// alone is whether nothing else in the process follows all pods and nodes.
	alone bool
}

// nodeParts are the parts of a node that run, each until its context ends.
type nodeParts struct {
	run      []func(context.Context) error
	kubelet  *kubelet.Kubelet
	policies *policy.Policy // nil for none, as the next
	names    *dns.Server
	routes   *proxy.Proxy
}

// parts makes the parts of a node. It asks for their informers.
func (p *nodeProcess) parts(board *health.Board) (parts nodeParts, err error) {
	add := func(run func(context.Context) error) { parts.run = append(parts.run, run) }
	if p.policies {
		if parts.policies, err = newPolicy(p, board.Add("network policies")); err != nil {
			return parts, err
		}
		add(parts.policies.Run)
	} else {
		board.Add("network policies").Works(policiesOff)
		add(cleaning(p.log, "rules of network policies", func() error { return policy.Cleanup(policyTable(p.port)) }))
	}
	if parts.kubelet, err = newKubelet(p, parts.policies); err != nil {
		return parts, err
	}
	add(parts.kubelet.Run)
	// It makes a Service in kube-system, as an administrator would.
	set, err := p.as("system:coracle-dns", user.SystemPrivilegedGroup)
	if err != nil {
		return parts, err
	}
	if !p.dnsElsewhere {
		parts.names, err = newDNS(set, p.services, p.nodeOptions, p.names, func() *health.Part { return board.Add("DNS") })
		if err != nil {
			return parts, err
		}
	}
	if parts.names != nil {
		add(parts.names.Run)
	}
	if p.proxy {
		routes, route, err := newProxy(p, board.Add("service proxy"))
		if err != nil {
			return parts, err
		}
		parts.routes = routes
		add(route)
	} else {
		add(cleaning(p.log, "rules of Services", func() error { return proxy.Cleanup(serviceTable(p.port)) }))
	}
	connect, err := newOverlay(p, func() *health.Part { return board.Add("pods of other nodes") })
	if err != nil {
		return parts, err
	}
	add(connect)
	if p.layers.CA != "" {
		o := p.layers
		o.NodeName, o.Socket = p.name, p.cri
		add(imagepeers.New(set, o).Run)
	}
	speak, err := newSpeaker(p, func() *health.Part { return board.Add("load balancers") })
	if err != nil {
		return parts, err
	}
	add(speak)
	ports, err := newFreePorts(p)
	if err != nil {
		return parts, err
	}
	if ports != nil {
		add(ports)
	}
	if p.bgpDir != "" {
		announce, err := newBGP(p, board.Add("BGP routes"))
		if err != nil {
			return parts, err
		}
		add(announce)
	}
	return parts, nil
}

func newKubelet(p *nodeProcess, policies *policy.Policy) (*kubelet.Kubelet, error) {
	set, err := p.as("system:node:"+p.name, "system:nodes")
	if err != nil {
		return nil, err
	}
	o := p.kubelet(p.root, p.services)
	o.LocalPathDir, o.ReservedPorts, o.Alone, o.AwaitPodRanges = p.localPath, p.reserved, p.alone, p.awaitRanges
	o.PluginNetwork = p.podNetwork == cniPodNetwork
	if policies != nil {
		o.Networks, o.RuntimeStarted = append(o.Networks, policies), policies.RuntimeStarted
	}
	o.CertFile, o.KeyFile, o.ClientCAFile, o.Serving = p.certFile, p.certFile, p.clientCA, p.serving
	return kubelet.New(set, o)
}
