package main

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/dns"
	"github.com/coracle-project/coracle/cluster/proxy"
	"github.com/coracle-project/coracle/cluster/why"
)

// whyPath is where this process says what decides about a connection: `coracle why`.
const whyPath = "/why"

// whyPatience bounds an answer: names may have to be resolved by other servers.
const whyPatience = 10 * time.Second

// newAsker answers from the informers of this process. names and routes may be nil.
func newAsker(server *apiserver.Server, node string, routes *proxy.Proxy, names *dns.Server) *why.Asker {
	core := server.Informers().Core().V1()
	a := &why.Asker{
		Pods: core.Pods().Lister(), Nodes: core.Nodes().Lister(), Services: core.Services().Lister(),
		Slices: server.Informers().Discovery().V1().EndpointSlices().Lister(),
		Node:   node, Domain: "cluster.local", Elsewhere: resolve,
	}
	if routes != nil {
		a.Routes = routes
	}
	if names != nil {
		a.Names = names
	}
	return a
}

// resolve asks the node's name servers.
func resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	for i, a := range all {
		all[i] = a.Unmap()
	}
	return all, err
}

// answerWhy answers questions that come as a query: from, to and namespace.
func answerWhy(a *why.Asker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), whyPatience)
		defer cancel()
		asked := r.URL.Query()
		answer, err := a.Why(ctx, why.Question{Namespace: asked.Get("namespace"), Source: asked.Get("from"), Destination: asked.Get("to")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answerJSON(w, answer)
	})
}
