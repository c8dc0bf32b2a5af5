package upstream

//lint:file-ignore SA1019 the old API is what is mirrored

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
)

// Endpoints that someone writes for a Service without a selector become slices; before there are
// any, the controller does not run, whatever Endpoints the endpoints controller and the API server
// keep.
func TestMirroring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
		ctx, end := run(t, NewMirroring(set), set.Informers)
		defer end()
		write := func(name string, labels, selector map[string]string) {
			t.Helper()
			meta := metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels}
			_, err := kube.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: selector}},
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = kube.CoreV1().Endpoints("default").Create(ctx, &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Name: "web", Port: 80}},
			}}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		slices := func() []discoveryv1.EndpointSlice {
			t.Helper()
			time.Sleep(time.Minute)
			synctest.Wait()
			list, err := kube.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		}
		write("kept", map[string]string{"endpoints.kubernetes.io/managed-by": "endpoint-controller"}, map[string]string{"app": "kept"})
		write("kubernetes", map[string]string{discoveryv1.LabelSkipMirror: "true"}, nil)
		// Only an object of the kind that is wanted would have started it.
		if found := slices(); len(found) != 0 {
			t.Errorf("slices %+v", found)
		}
		write("outside", nil, nil)
		found := slices()
		if len(found) != 1 || found[0].Labels[discoveryv1.LabelServiceName] != "outside" || len(found[0].Endpoints) != 1 ||
			found[0].Endpoints[0].Addresses[0] != "192.0.2.1" {
			t.Errorf("slices %+v", found)
		}
	})
}
