package main

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/coracle-project/coracle/cluster/bgp"
	"github.com/coracle-project/coracle/cluster/health"
)

// newBGP returns what writes this node's routes for coracle-bgp.
func newBGP(p *nodeProcess, part *health.Part) (func(context.Context) error, error) {
	pool, err := p.balancers.pool()
	if err != nil {
		return nil, err
	}
	set, err := p.as(user.KubeProxy) // it only reads, what the proxy reads
	if err != nil {
		return nil, err
	}
	return bgp.New(set, bgp.Options{NodeName: p.name, Pool: pool, Dir: p.bgpDir, Health: part}).Run, nil
}
