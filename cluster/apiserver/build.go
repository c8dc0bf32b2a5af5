package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"

	restful "github.com/emicklei/go-restful/v3"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apiopenapi "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	utilopenapi "k8s.io/apiserver/pkg/util/openapi"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	registrationscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	openapicommon "k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/coracle-project/coracle/cluster/apiserver/aggregate"
	"github.com/coracle-project/coracle/cluster/apiserver/direct"
	"github.com/coracle-project/coracle/cluster/apiserver/openapi"
)

// build is what a server is made of while it is made.
type build struct {
	options   *Options
	addresses addresses
	listener  net.Listener
	store     *store
	served    *serverstorage.ResourceConfig
	inside    *identities
	loopback  *rest.Config
	storages  *direct.Storages
	informers informers.SharedInformerFactory
	held      *atomic.Bool // see Server
	types     <-chan definedTypes

	config   *genericapiserver.Config
	ca       dynamiccertificates.CAContentProvider
	others   *aggregate.Aggregator
	keys     *serviceAccountKeys
	proxy    *http.Transport
	leases   leases
	creators creators
	// forInside answers clients in this process.
	forInside http.Handler
	gate      *admissionGate
	// containers have the routes of the built-in groups, and of custom resource definitions.
	containers []*restful.Container
	// definitions are the informers of custom resource definitions.
	definitions crdinformers.SharedInformerFactory
}

// server builds the API server: built-in groups first, what is not theirs goes to the custom
// resources, and what is not theirs either is not found.
func (b *build) server(ctx context.Context) (*genericapiserver.GenericAPIServer, error) {
	// Endpoints are called by address: their certificates cannot be verified. Upstream does the
	// same.
	b.proxy = http.DefaultTransport.(*http.Transport).Clone()
	b.proxy.Proxy = nil
	b.proxy.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	if err := b.configure(ctx); err != nil {
		return nil, err
	}
	resolver, err := newServiceResolver(b.informers)
	if err != nil {
		return nil, err
	}
	b.others, err = aggregate.New(aggregate.Options{
		Loopback: b.loopback, Informers: b.informers, Resolver: resolver,
		ClientPair: b.options.PKI.FrontProxyClient, Discovery: b.config.AggregatedDiscoveryGroupManager, Log: b.options.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("APIs of other servers: %w", err)
	}
	if err := b.admission(resolver); err != nil {
		return nil, fmt.Errorf("admission: %w", err)
	}
	custom, err := b.customResources(resolver)
	if err != nil {
		return nil, fmt.Errorf("custom resources: %w", err)
	}
	server, err := b.config.Complete(b.informers).New("kube-apiserver", custom.GenericAPIServer)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	server.ShutdownTimeout = drainLimit
	if err := b.installGroups(server); err != nil {
		return nil, err
	}
	for _, install := range b.options.ExtraAPIGroups {
		if err := install(server); err != nil {
			return nil, fmt.Errorf("extra API group: %w", err)
		}
	}
	b.definitions = custom.Informers
	crds := custom.Informers.Apiextensions().V1().CustomResourceDefinitions()
	if err := b.installRegistrations(server, crds); err != nil {
		return nil, fmt.Errorf("APIs of other servers: %w", err)
	}
	if err := b.installTokenKeys(server); err != nil {
		return nil, err
	}
	b.installMembers(server)
	if err := b.hooks(server); err != nil {
		return nil, err
	}
	if err := openapi.Install(server.Handler.NonGoRestfulMux, crds.Lister(), b.others, b.options.Log); err != nil {
		return nil, err
	}
	b.containers = []*restful.Container{server.Handler.GoRestfulContainer, custom.GenericAPIServer.Handler.GoRestfulContainer}
	if b.options.inspect != nil {
		b.options.inspect(b)
	}
	b.forget()
	return server, nil
}

// quiet returns a copy of a configuration for handlers that log and leave less than upstream's.
func (b *build) quiet(c *genericapiserver.Config) *genericapiserver.Config {
	quiet := *c
	quiet.Authentication.Authenticator = quietly(c.Authentication.Authenticator, b.options.Log)
	quiet.FeatureGate = untraced{c.FeatureGate}
	return &quiet
}

// configure makes the configuration of the generic server, but for admission.
func (b *build) configure(ctx context.Context) error {
	c := genericapiserver.NewConfig(legacyscheme.Codecs)
	b.config = c
	c.EffectiveVersion = compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.LoopbackClientConfig = b.loopback
	c.MergedResourceConfig = b.served
	c.RESTOptionsGetter = b.store
	shareFairly(c, b.options.seats)
	c.EnableProfiling = false
	c.ShutdownWatchTerminationGracePeriod = drainLimit // watches are ended, so that connections come to rest
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	c.BuildHandlerChainFunc = func(handler http.Handler, c *genericapiserver.Config) http.Handler {
		quiet := b.quiet(c) // here, since New has put its own authenticator before ours
		handler = &creations{next: withPlainDiscovery(handler, b.others.HasGroup), creators: &b.creators}
		handler = &renewals{next: handler, leases: &b.leases}
		handler = reportConcurrency(handler, b.options.Concurrent, c.LongRunningFunc)
		handler = abortingOnPanic(b.others.Wrap(handler), b.options.Log)
		chain := genericapiserver.DefaultBuildHandlerChain(handler, quiet)
		// Set for the last time by this server, which is built after that of custom resources.
		b.forInside = withStack(recordingAborts(insideChain(handler, chain, quiet), c.RequestInfoResolver, b.options.Log))
		chain = recordingAborts(chain, c.RequestInfoResolver, b.options.Log)
		return withStack(withBodyDeadline(chain, b.options.bodyLimit, c.RequestInfoResolver, c.LongRunningFunc))
	}
	c.LongRunningFunc = genericfilters.BasicLongRunningRequestCheck(
		sets.NewString("watch", "proxy"), sets.NewString("attach", "exec", "proxy", "log", "portforward"))
	c.PublicAddress = b.addresses.public
	port := b.listener.Addr().(*net.TCPAddr).Port
	c.ExternalAddress = net.JoinHostPort(b.addresses.public.String(), strconv.Itoa(port))
	c.AddHealthChecks(b.store.health())
	if e := b.store.encryption; e != nil { // a KMS plugin's end is no reason to start the server again
		c.HealthzChecks, c.ReadyzChecks = append(c.HealthzChecks, e), append(c.ReadyzChecks, e)
	}
	if err := b.audit(); err != nil {
		return err
	}

	types := <-b.types
	c.SkipOpenAPIInstallation = true
	c.OpenAPIConfig, c.OpenAPIV3Config = types.v2, types.v3
	pki := b.options.PKI
	cert, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", pki.Serving, pki.Serving)
	if err != nil {
		return readable(pki.Serving, err)
	}
	b.ca, err = dynamiccertificates.NewDynamicCAContentFromFile("client-ca", pki.CACert)
	if err != nil {
		return readable(pki.CACert, err)
	}
	c.SecureServing = &genericapiserver.SecureServingInfo{Listener: b.listener, Cert: cert, MinTLSVersion: tls.VersionTLS12}
	if err := c.Authentication.ApplyClientCert(b.ca, c.SecureServing); err != nil {
		return err
	}
	if b.keys, err = loadServiceAccountKeys(pki.ServiceAccountKey); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(b.loopback)
	if err != nil {
		return err
	}
	c.Authentication.APIAudiences = []string{issuer}
	if c.Authentication.Authenticator, err = newAuthenticator(ctx, b.options, c.APIServerID, b.inside, b.ca, b.keys,
		client, b.informers); err != nil {
		return err
	}
	c.Authorization.Authorizer, c.RuleResolver = newAuthorizer(b.informers)
	return nil
}

// definedTypes are the OpenAPI definitions of all types. They are only needed while groups are
// installed, for the field managers of server-side apply; the documents that clients read are in
// package openapi.
type definedTypes struct {
	v2 *openapicommon.Config
	v3 *openapicommon.OpenAPIV3Config
}

// defineTypes makes the definitions, which takes a processor some time.
func defineTypes(extra []*runtime.Scheme) (d definedTypes) {
	const title, scheme = "Kubernetes", "BearerToken"
	bearer := spec.SecuritySchemeProps{Type: "apiKey", Name: "authorization", In: "header", Description: "Bearer Token authentication"}
	namer := apiopenapi.NewDefinitionNamer(append([]*runtime.Scheme{legacyscheme.Scheme, apiextensions.Scheme, registrationscheme.Scheme},
		extra...)...)
	definitions := utilopenapi.GetOpenAPIDefinitionsWithoutDisabledFeatures(generatedopenapi.GetOpenAPIDefinitions)
	d.v2 = genericapiserver.DefaultOpenAPIConfig(definitions, namer)
	d.v2.Info.Title = title
	d.v2.SecurityDefinitions = &spec.SecurityDefinitions{scheme: {SecuritySchemeProps: bearer}}
	d.v3 = genericapiserver.DefaultOpenAPIV3Config(definitions, namer)
	d.v3.Info.Title = title
	d.v3.SecuritySchemes = spec3.SecuritySchemes{scheme: {SecuritySchemeProps: spec3.SecuritySchemeProps{
		Type: bearer.Type, Name: bearer.Name, In: bearer.In, Description: bearer.Description,
	}}}
	return d
}

// forget drops the definitions, which are tens of megabytes.
func (b *build) forget() {
	*b.config.OpenAPIConfig, *b.config.OpenAPIV3Config = openapicommon.Config{}, openapicommon.OpenAPIV3Config{}
}

// customResources builds the server of custom resources and their definitions.
func (b *build) customResources(resolver webhook.ServiceResolver) (*apiextensions.CustomResourceDefinitions, error) {
	c := *b.config
	c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	c.MergedResourceConfig = apiextensions.DefaultAPIResourceConfigSource()
	c.RESTOptionsGetter = definitions{b.store}
	authenticated := webhook.NewDefaultAuthenticationInfoResolverWrapper(b.proxy, nil, b.loopback, c.TracerProvider)
	config := apiextensions.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: b.informers},
		ExtraConfig: apiextensions.ExtraConfig{
			CRDRESTOptionsGetter: custom{b.store}, MasterCount: b.servers(), ServiceResolver: resolver,
			AuthResolverWrapper: func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
				return limitWebhooks(authenticated(r))
			},
		},
	}
	missing := notfoundhandler.New(c.Serializer, filters.NoMuxAndDiscoveryIncompleteKey)
	return config.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(missing))
}

// servers is how many API servers there are, as far as it matters: one, or more. With more, a
// custom resource is established some seconds later, when the others know it.
func (b *build) servers() int {
	if b.options.Several {
		return 2
	}
	return 1
}

// installTokenKeys lets others verify service account tokens (OpenID discovery).
func (b *build) installTokenKeys(server *genericapiserver.GenericAPIServer) error {
	metadata, err := serviceaccount.NewOpenIDMetadataProvider(issuer, "", b.config.ExternalAddress, b.keys)
	if err != nil {
		return fmt.Errorf("OpenID metadata: %w", err)
	}
	routes.NewOpenIDMetadataServer(metadata).Install(server.Handler.GoRestfulContainer)
	return nil
}
