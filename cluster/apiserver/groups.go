package apiserver

import (
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/kubernetes"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	admissionregistrationrest "k8s.io/kubernetes/pkg/registry/admissionregistration/rest"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	autoscalingrest "k8s.io/kubernetes/pkg/registry/autoscaling/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	discoveryrest "k8s.io/kubernetes/pkg/registry/discovery/rest"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	flowcontrolrest "k8s.io/kubernetes/pkg/registry/flowcontrol/rest"
	networkingrest "k8s.io/kubernetes/pkg/registry/networking/rest"
	noderest "k8s.io/kubernetes/pkg/registry/node/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// repairEvery is how often the books of Services' addresses and ports are compared with the
	// Services (upstream's value).
	repairEvery = 3 * time.Minute
	kubeletPort = 10250
	// kubeletTimeout bounds how long connecting to a kubelet may take (upstream's value).
	kubeletTimeout = 5 * time.Second
)

// nodePorts are given to Services of type NodePort (upstream's default).
var nodePorts = utilnet.PortRange{Base: 30000, Size: 2768}

// CheckListenPort refuses a port that a node's own server is to listen on if a Service may get it:
// its connections would go to that Service.
func CheckListenPort(port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("%d is not between 1 and 65535", port)
	}
	if nodePorts.Contains(port) {
		return fmt.Errorf("%d is one of the node ports of Services, %s: choose a port outside of them", port, nodePorts)
	}
	return nil
}

// servedResources says which API groups are served, each in every version that is not deprecated.
func servedResources() *serverstorage.ResourceConfig {
	served := serverstorage.NewResourceConfig()
	served.EnableVersions(
		admissionregistrationv1.SchemeGroupVersion, appsv1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion,
		authorizationv1.SchemeGroupVersion, autoscalingv1.SchemeGroupVersion, autoscalingv2.SchemeGroupVersion, batchv1.SchemeGroupVersion,
		certificatesv1.SchemeGroupVersion, coordinationv1.SchemeGroupVersion, corev1.SchemeGroupVersion,
		discoveryv1.SchemeGroupVersion, eventsv1.SchemeGroupVersion, flowcontrolv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion,
		nodev1.SchemeGroupVersion, policyv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion, resourcev1.SchemeGroupVersion,
		schedulingv1.SchemeGroupVersion, storagev1.SchemeGroupVersion,
	)
	// Deprecated since 1.19; it would ask for ports that our components do not have.
	served.DisableResources(corev1.SchemeGroupVersion.WithResource("componentstatuses"))
	return served
}

// provider is what upstream's registries make an API group with.
type provider interface {
	GroupName() string
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// providers returns the API groups in the order of discovery: of resources with the same name, the
// first group's is meant by that name alone.
func (b *build) providers() ([]provider, error) {
	client, err := kubernetes.NewForConfig(b.loopback)
	if err != nil {
		return nil, err
	}
	authentication, authorizer := b.config.Authentication, b.config.Authorization.Authorizer
	core, err := corerest.New(corerest.Config{
		GenericConfig: corerest.GenericConfig{
			StorageFactory: b.store.factory, EventTTL: b.options.EventTTL, LoopbackClientConfig: b.loopback,
			Informers:            newPromptInformers(b.informers),
			ServiceAccountIssuer: b.keys, APIAudiences: authentication.APIAudiences,
			ExtendExpiration: true, MaxExtendedExpiration: serviceaccount.ExpirationExtensionSeconds * time.Second,
		},
		Proxy: corerest.ProxyConfig{Transport: b.proxy, KubeletClientConfig: KubeletClient(b.options.PKI)},
		Services: corerest.ServicesConfig{
			ClusterIPRange: b.addresses.services, SecondaryClusterIPRange: b.addresses.second,
			NodePortRange: nodePorts, IPRepairInterval: repairEvery,
		},
	}, authorizer)
	if err != nil {
		return nil, fmt.Errorf("API group core: %w", err)
	}
	return []provider{
		core,
		authenticationrest.RESTStorageProvider{Authenticator: authentication.Authenticator, APIAudiences: authentication.APIAudiences},
		authorizationrest.RESTStorageProvider{Authorizer: authorizer, RuleResolver: b.config.RuleResolver},
		autoscalingrest.RESTStorageProvider{},
		batchrest.RESTStorageProvider{},
		certificatesrest.RESTStorageProvider{Authorizer: authorizer},
		coordinationrest.RESTStorageProvider{},
		discoveryrest.StorageProvider{},
		networkingrest.RESTStorageProvider{},
		noderest.RESTStorageProvider{},
		policyrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: authorizer},
		schedulingrest.RESTStorageProvider{},
		storagerest.RESTStorageProvider{},
		appsrest.StorageProvider{},
		admissionregistrationrest.RESTStorageProvider{Authorizer: authorizer, DiscoveryClient: client.Discovery()},
		eventsrest.RESTStorageProvider{TTL: b.options.EventTTL},
		resourcerest.RESTStorageProvider{NamespaceClient: client.CoreV1().Namespaces(), Authorizer: authorizer},
		withoutHook{flowcontrolrest.RESTStorageProvider{}},
	}, nil
}

// withoutHook is a provider whose hook is not started: its objects are kept only (see shareFairly).
type withoutHook struct{ provider }

// KubeletClient says how the API server reaches kubelets, for logs, exec, attach and port-forward.
func KubeletClient(credentials *pki.Bundle) kubeletclient.KubeletClientConfig {
	return kubeletclient.KubeletClientConfig{
		Port: kubeletPort, HTTPTimeout: kubeletTimeout,
		// Addresses first: a node's name need not be known to any DNS.
		PreferredAddressTypes: []string{string(corev1.NodeInternalIP), string(corev1.NodeExternalIP), string(corev1.NodeHostName)},
		TLSClientConfig: kubeletclient.KubeletTLSConfig{
			CertFile: credentials.KubeletClient, KeyFile: credentials.KubeletClient, CAFile: credentials.CACert,
		},
	}
}

// installGroups adds the built-in API groups to server.
func (b *build) installGroups(server *genericapiserver.GenericAPIServer) error {
	providers, err := b.providers()
	if err != nil {
		return err
	}
	var named []*genericapiserver.APIGroupInfo
	for _, p := range providers {
		group, err := p.NewRESTStorage(b.served, b.store)
		if err != nil {
			return fmt.Errorf("API group %q: %w", p.GroupName(), err)
		}
		if p.GroupName() == corev1.GroupName {
			if err := limitUpgrades(group.VersionedResourcesStorageMap[corev1.SchemeGroupVersion.Version]); err != nil {
				return err
			}
		}
		if err := b.storages.Add(&group); err != nil {
			return fmt.Errorf("API group %q: %w", p.GroupName(), err)
		}
		if hooked, ok := p.(genericapiserver.PostStartHookProvider); ok {
			name, hook, err := hooked.PostStartHook()
			if err != nil {
				return fmt.Errorf("API group %q: %w", p.GroupName(), err)
			}
			if !ownHooks[name] {
				server.AddPostStartHookOrDie(name, hook)
			}
		}
		if p.GroupName() == leaseResource.Group {
			b.leases.set(&group, b.config)
		}
		if err := b.creators.set(&group, b.config); err != nil {
			return fmt.Errorf("API group %q: %w", p.GroupName(), err)
		}
		if p.GroupName() == "" {
			if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &group); err != nil {
				return fmt.Errorf("API group core: %w", err)
			}
			group.StaticOpenAPISpec = nil
			continue
		}
		named = append(named, &group)
	}
	if err := server.InstallAPIGroups(named...); err != nil {
		return fmt.Errorf("API groups: %w", err)
	}
	// The server keeps the groups, for closing their storage; the definitions are not needed for
	// that.
	for _, group := range named {
		group.StaticOpenAPISpec = nil
	}
	return nil
}
