package endpointslice

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller/endpointslice"
	"sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// TestMain keeps logs out of the tests', and upstream's error handler too: it sleeps until some
// time after its last error, which another bubble's clock set.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

var theirs = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	core, discovery := set.Informers.Core().V1(), set.Informers.Discovery().V1()
	core.Pods().Informer()
	core.Services().Informer()
	core.Nodes().Informer()
	discovery.EndpointSlices().Informer()
	return apitest.Upstream(func(ctx context.Context) {
		upstream.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), discovery.EndpointSlices(), maxEndpoints, set.Kube, 0).Run(ctx, 5)
	})
}}

var ctx = context.Background()

type world struct {
	*apitest.Server
	t *testing.T
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w world) pods(from, to int, app string) {
	for i := from; i < to; i++ {
		p := must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: fmt.Sprint(app, i), Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: fmt.Sprint("n", i%2)},
		}, metav1.CreateOptions{}))
		ip := fmt.Sprintf("10.1.%d.%d", i/256, i%256)
		w.SetPod(w.t, p, func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
		w.Settle()
	}
	w.Settle()
}

// state is all slices there are, without their names, in order.
func (w world) state() string {
	var out []string
	for _, slice := range must(w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).List(ctx, metav1.ListOptions{})).Items {
		slice.UID, slice.ResourceVersion, slice.CreationTimestamp, slice.Name, slice.Generation = "", "", metav1.Time{}, "", 0
		for i := range slice.OwnerReferences {
			slice.OwnerReferences[i].UID = ""
		}
		for i := range slice.Endpoints {
			slice.Endpoints[i].TargetRef.UID = ""
		}
		out = append(out, string(must(yaml.Marshal(slice))))
	}
	slices.Sort(out)
	return strings.Join(out, "---\n")
}

// sizes is how many endpoints slices have: which of them gets which is left to chance by upstream's
// reconciler.
func (w world) sizes() string {
	var out []int
	for _, slice := range must(w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).List(ctx, metav1.ListOptions{})).Items {
		out = append(out, len(slice.Endpoints))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// TestAsUpstream plays the same changes to upstream's controller and to ours.
func TestAsUpstream(t *testing.T) {
	scenario := func(w world, note func(string, func() string)) {
		for i := range 2 {
			must(w.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone", i)}},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			}, metav1.CreateOptions{}))
		}
		services := w.Kube.CoreV1().Services(apitest.Namespace)
		close := corev1.ServiceTrafficDistributionPreferClose
		must(services.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "web", Labels: map[string]string{"of": "web"}},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.0.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Selector: map[string]string{"app": "web"}, TrafficDistribution: &close,
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
			},
		}, metav1.CreateOptions{}))
		w.Settle()
		note("no pods", w.state)
		w.pods(0, 1, "web")
		w.pods(0, 1, "other")
		note("one pod", w.state)
		w.SetPod(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "web0"}}, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
		})
		w.Settle()
		note("it is leaving", w.state)
		all := must(w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).List(ctx, metav1.ListOptions{}))
		if err := w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).Delete(ctx, all.Items[0].Name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		note("a user deleted the slice", w.state)
		all = must(w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).List(ctx, metav1.ListOptions{}))
		if len(all.Items) > 0 {
			all.Items[0].Endpoints = nil
			must(w.Kube.DiscoveryV1().EndpointSlices(apitest.Namespace).Update(ctx, &all.Items[0], metav1.UpdateOptions{}))
		}
		note("a user emptied the slice", w.state)
		w.pods(1, 250, "web")
		note("many pods", w.sizes)
		s := must(services.Get(ctx, "web", metav1.GetOptions{}))
		s.Spec.Ports[0].TargetPort = intstr.FromInt32(9090)
		must(services.Update(ctx, s, metav1.UpdateOptions{}))
		note("another port", w.sizes)
	}
	var want []string
	theirs.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string, state func() string) {
			w.Pass(20 * time.Second)
			want = append(want, step+":\n"+state())
		})
	})
	apitest.Ours(New).As("endpointslice-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string, state func() string) {
			w.Pass(20 * time.Second)
			if got := step + ":\n" + state(); got != want[0] {
				t.Errorf("%s\n\nupstream %s", got, want[0])
			}
			want = want[1:]
		})
	})
}
