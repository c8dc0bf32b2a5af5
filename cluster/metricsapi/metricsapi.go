// Package metricsapi serves metrics.k8s.io/v1beta1, what nodes and pods use of CPU and memory now,
// so that `kubectl top` and the autoscaler work with nothing installed.
//
//	scrape, err := metricsapi.Kubelets(nodes, kubeletClientConfig)
//	metricsapi.Install(server, metricsapi.NewSampler(scrape, nodes, pods, log))
//
// Nothing is stored, and nothing is done while no one asks. CPU usage is a rate, so it needs two
// readings: Sampler takes them when it is asked, and answers all who ask within the next quarter of
// a minute from the same ones.
package metricsapi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Source has the figures that are served. Its answers are not changed by those who get them.
type Source interface {
	// NodeMetrics returns the usage of each node that it is known of, with the node's labels.
	NodeMetrics(ctx context.Context) ([]metrics.NodeMetrics, error)
	// PodMetrics returns the usage of each running pod that it is known of, with the pod's labels.
	PodMetrics(ctx context.Context) ([]metrics.PodMetrics, error)
}

// newScheme knows the group's types.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{},
		&metav1.APIResourceList{})
	return scheme
}

// Install serves the group in server with source's figures. Call it before the server is prepared.
func Install(server *genericapiserver.GenericAPIServer, source Source) error {
	scheme := newScheme()
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, serializer.NewCodecFactory(scheme))
	group.VersionedResourcesStorageMap[v1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"nodes": &nodeStorage{source: source},
		"pods":  &podStorage{source: source},
	}
	return server.InstallAPIGroup(&group)
}
