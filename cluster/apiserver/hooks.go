package apiserver

import (
	"log/slog"
	"net"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
	"k8s.io/kubernetes/pkg/controlplane/controller/kubernetesservice"
	"k8s.io/kubernetes/pkg/controlplane/controller/systemnamespaces"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/coracle-project/coracle/cluster/pki"
)

// reconcileEvery is how often the kubernetes Service's endpoints are looked at (upstream's value).
const reconcileEvery = 10 * time.Second

// systemNamespaces are made if they are missing.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault}

// hooks adds what the server keeps up in its own API while it runs.
func (b *build) hooks(server *genericapiserver.GenericAPIServer) error {
	client, err := kubernetes.NewForConfig(b.loopback)
	if err != nil {
		return err
	}
	core := b.informers.Core().V1()
	add := server.AddPostStartHookOrDie

	builtins(server, client, b.informers.Rbac().V1(), *b.options)

	namespaces := systemnamespaces.NewController(systemNamespaces, client, core.Namespaces())
	add("start-system-namespaces-controller", func(ctx genericapiserver.PostStartHookContext) error {
		go namespaces.Run(ctx.Done())
		return nil
	})

	cidrs := defaultservicecidr.NewController(b.addresses.services, b.addresses.second, client)
	add("start-kubernetes-service-cidr-controller", func(ctx genericapiserver.PostStartHookContext) error {
		if b.hasServiceNetwork() {
			go cidrs.Start(ctx) // looks at it every 10 s, the first time after 100 ms
			return nil
		}
		cidrs.Start(ctx) // returns when the network exists: without it no Service gets an address
		return nil
	})

	own, err := b.kubernetesService(client)
	if err != nil {
		return err
	}
	add("bootstrap-controller", func(ctx genericapiserver.PostStartHookContext) error {
		own.Start(ctx.Done())
		return nil
	})
	if b.options.Several { // clients go to the others at once
		if err := server.AddPreShutdownHook("bootstrap-controller", func() error {
			withdraw(own.Stop, b.options.Log)
			return nil
		}); err != nil {
			return err
		}
	}

	// What other API servers have to know to believe which user a request is from.
	front, err := dynamiccertificates.NewDynamicCAContentFromFile("front-proxy-ca", b.options.PKI.FrontProxyCACert)
	if err != nil {
		return readable(b.options.PKI.FrontProxyCACert, err)
	}
	trust := clusterauthenticationtrust.ClusterAuthenticationInfo{
		ClientCA: b.ca, RequestHeaderCA: front, RequestHeaderAllowedNames: headerrequest.StaticStringSlice{pki.FrontProxyName},
		RequestHeaderUsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
		RequestHeaderUIDHeaders:          headerrequest.StaticStringSlice{"X-Remote-Uid"},
		RequestHeaderGroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
		RequestHeaderExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
	}
	add("start-cluster-authentication-info-controller", func(ctx genericapiserver.PostStartHookContext) error {
		controller := clusterauthenticationtrust.NewClusterAuthenticationTrustController(trust, client)
		b.ca.AddListener(controller)
		front.AddListener(controller)
		if runner, ok := b.ca.(dynamiccertificates.ControllerRunner); ok {
			if err := runner.RunOnce(ctx); err != nil {
				b.options.Log.Warn("the certificate authority's file cannot be read", "err", err)
			}
		}
		go front.Run(ctx, 1) // the server of TLS does this for the other one
		go controller.Run(ctx, 1)
		return nil
	})
	return nil
}

// withdrawLimit is how long a server that stops tries to take its endpoint back. Without a quorum
// of etcd it cannot, and upstream's controller would try for twice reconcileEvery.
const withdrawLimit = 2 * time.Second

// withdraw has clients go to the other API servers: stop takes the endpoint of this one back.
func withdraw(stop func(), log *slog.Logger) {
	done := make(chan struct{})
	go func() { // it ends with the store at the latest
		defer close(done)
		stop()
	}()
	select {
	case <-done:
	case <-time.After(withdrawLimit):
		log.Warn("etcd has not answered: this API server's endpoint stays published until its lease expires", "waited", withdrawLimit,
			"lease", leaseLife)
	}
}

// leaseLife is how long the endpoint of an API server that died stays published (upstream's value).
const leaseLife = 15 * time.Second

// kubernetesService returns what keeps the Service by which pods reach this server, and agents all.
func (b *build) kubernetesService(client kubernetes.Interface) (*kubernetesservice.Controller, error) {
	var endpoints reconcilers.EndpointReconciler = keptEndpoints{reconcilers.NewNoneEndpointReconciler()}
	adapter := reconcilers.NewEndpointsAdapter(client.CoreV1(), client.DiscoveryV1())
	switch {
	case b.addresses.public.IsLoopback(): // endpoints on loopback are invalid, and pods would not reach them
	case b.options.Several:
		config, err := b.store.factory.NewConfig(corev1.Resource("apiServerIPInfo"), &core.Endpoints{})
		if err != nil {
			return nil, err
		}
		leases, err := reconcilers.NewLeases(config, "/masterleases/", leaseLife)
		if err != nil {
			return nil, err
		}
		endpoints = reconcilers.NewLeaseEndpointReconciler(adapter, leases)
	default:
		endpoints = keptEndpoints{reconcilers.NewMasterCountEndpointReconciler(1, adapter)}
	}
	if b.addresses.held {
		endpoints = heldEndpoints{endpoints, b.held}
	}
	return kubernetesservice.New(kubernetesservice.Config{
		PublicIP: b.addresses.public, PublicServicePort: b.listener.Addr().(*net.TCPAddr).Port,
		ServiceIP: b.addresses.kubernetes, ServicePort: servicePort,
		EndpointReconciler: endpoints, EndpointInterval: reconcileEvery,
	}, client, b.informers.Core().V1().Services()), nil
}

// keptEndpoints has nothing to take back when a server starts. The only server's endpoints of
// before are put right, if they are wrong, when it is ready; with several, pods would not be sent
// to this one until then.
type keptEndpoints struct{ reconcilers.EndpointReconciler }

func (keptEndpoints) RemoveEndpoints(name string, _ net.IP, _ []corev1.EndpointPort) error {
	return storage.NewKeyNotFoundError(name, 0)
}
