package apiserver

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registrationscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	registrationrest "k8s.io/kube-aggregator/pkg/registry/apiservice/rest"
)

// installRegistrations adds the group of APIServices, and has each group and version that is served
// here have one.
func (b *build) installRegistrations(server *genericapiserver.GenericAPIServer, crds crdinformers.CustomResourceDefinitionInformer) error {
	served := serverstorage.NewResourceConfig()
	served.EnableVersions(apiregistrationv1.SchemeGroupVersion)
	group := registrationrest.NewRESTStorage(served, registrations{b.store}, false)
	if err := server.InstallAPIGroup(&group); err != nil {
		return err
	}
	group.StaticOpenAPISpec = nil
	builtin := []schema.GroupVersion{apiextensionsv1.SchemeGroupVersion}
	for gv, enabled := range b.served.GroupVersionConfigs {
		if enabled {
			builtin = append(builtin, gv)
		}
	}
	return b.others.Install(server, builtin, crds)
}

// registrations is where APIServices are kept. They are few, and read by one informer.
type registrations struct{ *store }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (r registrations) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := r.config
	config.Codec, config.Transformer = registrationscheme.Codecs.LegacyCodec(apiregistrationv1.SchemeGroupVersion), r.transformer(resource)
	return r.options(config.ForResource(resource), resource.Group+"/"+resource.Resource, false), nil
}
