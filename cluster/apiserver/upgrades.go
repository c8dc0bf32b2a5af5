package apiserver

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/registry/rest"
	noderest "k8s.io/kubernetes/pkg/registry/core/node/rest"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	"k8s.io/kubernetes/pkg/registry/core/service"

	"github.com/coracle-project/coracle/cluster/apiserver/pages"
	"github.com/coracle-project/coracle/cluster/apiserver/upgrade"
)

// limitUpgrades limits what is read of answers to requests for upgraded connections, and what is
// kept of HTML pages: of pods and Services, which are not trusted, and of kubelets, which are
// trusted with their node only.
func limitUpgrades(core map[string]rest.Storage) error {
	for name, storage := range core {
		switch storage := storage.(type) {
		case *podrest.ExecREST:
			storage.KubeletConn = upgrade.Kubelets(storage.KubeletConn)
		case *podrest.AttachREST:
			storage.KubeletConn = upgrade.Kubelets(storage.KubeletConn)
		case *podrest.PortForwardREST:
			storage.KubeletConn = upgrade.Kubelets(storage.KubeletConn)
		case *podrest.ProxyREST:
			core[name] = podProxy{storage}
		case *service.ProxyREST:
			core[name] = serviceProxy{storage}
		case *noderest.ProxyREST:
			core[name] = nodeProxy{storage}
		case rest.Connecter:
			if name != "pods/log" { // it takes no upgrades
				return fmt.Errorf("%s: %T passes requests on without the limit for upgraded connections", name, storage)
			}
		}
	}
	return nil
}

type (
	podProxy     struct{ *podrest.ProxyREST }
	serviceProxy struct{ *service.ProxyREST }
	nodeProxy    struct{ *noderest.ProxyREST }
)

// Connect implements rest.Connecter.
func (p podProxy) Connect(ctx context.Context, name string, o runtime.Object, r rest.Responder) (http.Handler, error) {
	return withLimit(p.ProxyREST.Connect(ctx, name, o, r))
}

// Connect implements rest.Connecter.
func (p serviceProxy) Connect(ctx context.Context, name string, o runtime.Object, r rest.Responder) (http.Handler, error) {
	return withLimit(p.ProxyREST.Connect(ctx, name, o, r))
}

// Connect implements rest.Connecter.
func (p nodeProxy) Connect(ctx context.Context, name string, o runtime.Object, r rest.Responder) (http.Handler, error) {
	return withLimit(p.ProxyREST.Connect(ctx, name, o, r))
}

func withLimit(handler http.Handler, err error) (http.Handler, error) {
	if err != nil {
		return nil, err
	}
	passing, ok := handler.(*proxy.UpgradeAwareHandler)
	if !ok {
		return nil, fmt.Errorf("%T has no limit for upgraded connections", handler)
	}
	upgrade.Limit(passing)
	passing.Transport = pages.Limit(passing.Transport)
	return passing, nil
}
