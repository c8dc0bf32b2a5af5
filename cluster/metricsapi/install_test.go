package metricsapi

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// TestInstall asks a generic API server over HTTP, as kubectl does.
func TestInstall(t *testing.T) {
	scheme := newScheme()
	config := genericapiserver.NewConfig(serializer.NewCodecFactory(scheme))
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = &rest.Config{}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(generatedopenapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(scheme))
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(generatedopenapi.GetOpenAPIDefinitions,
		openapinamer.NewDefinitionNamer(scheme))
	server, err := config.Complete(nil).New("test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Destroy()
	if err := Install(server, fixed{}); err != nil {
		t.Fatal(err)
	}
	ask := func(target, accept string, into any) int {
		t.Helper()
		r := httptest.NewRequest("GET", target, nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		server.Handler.ServeHTTP(w, r)
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Fatalf("%s: %d %s", target, w.Code, w.Body)
		}
		return w.Code
	}
	var resources metav1.APIResourceList
	ask("/apis/metrics.k8s.io/v1beta1", "application/json", &resources)
	for _, r := range resources.APIResources {
		if strings.Join(r.Verbs, " ") != "get list" || r.Kind != map[string]string{"nodes": "NodeMetrics", "pods": "PodMetrics"}[r.Name] ||
			r.Namespaced != (r.Name == "pods") {
			t.Error(r)
		}
	}
	if len(resources.APIResources) != 2 {
		t.Error(resources)
	}
	var pods v1beta1.PodMetricsList
	if code := ask("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods?labelSelector=app%3Dweb", "application/json", &pods); code != 200 ||
		pods.Kind != "PodMetricsList" || len(pods.Items) != 1 || pods.Items[0].Containers[0].Usage.Cpu().String() != "250m" {
		t.Error(code, pods)
	}
	var node v1beta1.NodeMetrics
	if code := ask("/apis/metrics.k8s.io/v1beta1/nodes/n1", "application/json", &node); code != 200 || node.Kind != "NodeMetrics" ||
		node.Usage.Cpu().String() != "123456789n" || node.Window.Duration.String() != "1s" {
		t.Error(code, node)
	}
	var table metav1.Table
	if code := ask("/apis/metrics.k8s.io/v1beta1/nodes", "application/json;as=Table;v=v1;g=meta.k8s.io", &table); code != 200 ||
		table.Kind != "Table" || len(table.Rows) != 2 {
		t.Error(code, table)
	}
	var status metav1.Status
	if code := ask("/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/none", "application/json", &status); code != 404 ||
		status.Reason != metav1.StatusReasonNotFound {
		t.Error(code, status)
	}
}
