package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"
)

// figures serves custom and external metrics as an adapter of users does: each is 30.
func figures(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 {
		http.NotFound(w, r)
		return
	}
	version, now := parts[1]+"/"+parts[2], time.Now().UTC().Format(time.RFC3339)
	answer := map[string]any{"apiVersion": version, "metadata": map[string]any{}}
	switch {
	case len(parts) == 3:
		answer = map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": []any{
			map[string]any{"name": "queue", "singularName": "", "namespaced": true, "kind": "Value", "verbs": []string{"get"}},
		}}
	case parts[1] == "external.metrics.k8s.io": // namespaces/NS/METRIC
		answer["kind"] = "ExternalMetricValueList"
		answer["items"] = []any{map[string]any{"metricName": parts[5], "metricLabels": map[string]string{}, "timestamp": now, "value": "30"}}
	default: // namespaces/NS/services/NAME/METRIC
		answer["kind"] = "MetricValueList"
		answer["items"] = []any{map[string]any{
			"describedObject": map[string]string{"kind": "Service", "apiVersion": "v1", "namespace": parts[4], "name": parts[6]},
			"metric":          map[string]string{"name": parts[7]}, "timestamp": now, "value": "30",
		}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// Deployments grow by metrics of servers that users register.
func TestAutoscalerByMetricsOfOtherServers(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	server := httptest.NewTLSServer(http.HandlerFunc(figures))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	must[*corev1.Service](t)(c.kube.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "adapter"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}))
	registered := must[*clientset.Clientset](t)(clientset.NewForConfig(c.config)).ApiregistrationV1().APIServices()
	for group, version := range map[string]string{"external.metrics.k8s.io": "v1beta1", "custom.metrics.k8s.io": "v1beta2"} {
		must[*apiregistrationv1.APIService](t)(registered.Create(ctx, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: version + "." + group},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: group, Version: version, GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
				Service: &apiregistrationv1.ServiceReference{Namespace: ns, Name: "adapter", Port: ptr.To(int32(number))},
			},
		}, metav1.CreateOptions{}))
		t.Cleanup(func() { // others share the server
			if err := registered.Delete(context.Background(), version+"."+group, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	half := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("15"))}
	for name, metric := range map[string]autoscalingv2.MetricSpec{
		"external": {Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: half,
		}},
		"custom": {Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "adapter"},
			Metric:          autoscalingv2.MetricIdentifier{Name: "requests"}, Target: half,
		}},
	} {
		app := map[string]string{"app": name}
		must[*appsv1.Deployment](t)(c.kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template(app)},
		}, metav1.CreateOptions{}))
		c.createScaler(ctx, t, ns, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			func(spec *autoscalingv2.HorizontalPodAutoscalerSpec) {
				spec.Metrics = []autoscalingv2.MetricSpec{metric}
			})
	}
	for _, name := range []string{"external", "custom"} {
		eventually(ctx, t, name+" has two", func() (bool, error) {
			d, err := c.kube.AppsV1().Deployments(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			return *d.Spec.Replicas == 2, fmt.Errorf("wants %d", *d.Spec.Replicas)
		})
	}
}
