package endpoints

//lint:file-ignore SA1019 the old API is what this package serves

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller/endpoint"
	"sigs.k8s.io/yaml"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
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
	core := set.Informers.Core().V1()
	core.Pods().Informer()
	core.Services().Informer()
	core.Endpoints().Informer()
	return apitest.Upstream(func(ctx context.Context) {
		upstream.NewEndpointController(ctx, core.Pods(), core.Services(), core.Endpoints(), set.Kube, 0).Run(ctx, 5)
	})
}}

var ctx = context.Background()

func TestCacheThatDoesNotShowTheLastWriteIsNoFailure(t *testing.T) {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
	recorder := record.NewFakeRecorder(1)
	set := &client.Set{Kube: fake.NewClientset(e)}
	c := &controller{set: set, recorder: recorder, frame: frame.New("endpoints", 1, set.Logger(), nil)}
	service := &corev1.Service{ObjectMeta: e.ObjectMeta}
	if err := c.write(ctx, "ns/web", service, e, e, true); err != nil || len(recorder.Events) > 0 {
		t.Errorf("got error %v and %d events", err, len(recorder.Events))
	}
}

// world is an API with Services, and pods behind them.
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

func (w world) service(name string, change func(*corev1.Service)) {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: name, Labels: map[string]string{"of": name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	must(w.Kube.CoreV1().Services(apitest.Namespace).Create(ctx, s, metav1.CreateOptions{}))
	w.Settle()
}

func (w world) changeService(name string, change func(*corev1.Service)) {
	s := must(w.Kube.CoreV1().Services(apitest.Namespace).Get(ctx, name, metav1.GetOptions{}))
	change(s)
	must(w.Kube.CoreV1().Services(apitest.Namespace).Update(ctx, s, metav1.UpdateOptions{}))
	w.Settle()
}

func (w world) pod(name, app, ip string, ready bool) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: "node", Hostname: name, Subdomain: app, Containers: []corev1.Container{{
			Name: "c", Ports: []corev1.ContainerPort{{Name: "named", ContainerPort: 9090, Protocol: corev1.ProtocolTCP}},
		}}},
	}
	p = must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, p, metav1.CreateOptions{}))
	w.change(p.Name, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}, {IP: "fd00::" + ip[len(ip)-1:]}}}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
	})
}

func (w world) change(pod string, change func(*corev1.Pod)) {
	w.SetPod(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: pod}}, change)
	w.Settle()
}

// state is all Endpoints there are.
func (w world) state() string {
	var out string
	for _, e := range must(w.Kube.CoreV1().Endpoints(apitest.Namespace).List(ctx, metav1.ListOptions{})).Items {
		e.UID, e.ResourceVersion, e.CreationTimestamp, e.Generation = "", "", metav1.Time{}, 0
		out += string(must(yaml.Marshal(e)))
	}
	return out
}

// TestAsUpstream plays the same changes to upstream's controller and to ours.
func TestAsUpstream(t *testing.T) {
	scenario := func(w world, note func(string)) {
		must(w.Kube.CoreV1().Endpoints(apitest.Namespace).Create(ctx,
			&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "of-a-user"}}, metav1.CreateOptions{}))
		w.service("web", nil)
		note("no pods")
		w.pod("a", "web", "10.1.0.1", true)
		w.pod("b", "web", "10.1.0.2", false)
		w.pod("other", "api", "10.1.0.9", true)
		note("two pods")
		w.change("b", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		})
		note("both ready")
		w.change("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		note("one ended")
		w.changeService("web", func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports,
				corev1.ServicePort{Name: "named", Port: 90, TargetPort: intstr.FromString("named"), Protocol: corev1.ProtocolTCP},
				corev1.ServicePort{Name: "none", Port: 91, TargetPort: intstr.FromString("unknown"), Protocol: corev1.ProtocolTCP})
			s.Labels = nil
		})
		note("more ports, no labels")
		w.service("headless", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.Ports, s.Spec.Selector = corev1.ClusterIPNone, nil, map[string]string{"app": "web"}
			s.Spec.PublishNotReadyAddresses = true
		})
		w.service("six", func(s *corev1.Service) {
			s.Spec.IPFamilies, s.Spec.Selector = []corev1.IPFamily{corev1.IPv6Protocol}, map[string]string{"app": "web"}
		})
		w.service("by-hand", func(s *corev1.Service) { s.Spec.Selector = nil })
		w.service("outside", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		})
		note("more services")
		if err := w.Kube.CoreV1().Endpoints(apitest.Namespace).Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		note("deleted by a user")
		w.change("b", func(p *corev1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			p.DeletionGracePeriodSeconds = new(int64(30))
		})
		note("a pod leaves")
		if err := w.Kube.CoreV1().Services(apitest.Namespace).Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		note("no service")
	}
	var want []string
	theirs.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) {
			w.Pass(5 * time.Second)
			want = append(want, step+":\n"+w.state())
		})
	})
	apitest.Ours(New).As("endpoint-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) {
			w.Pass(5 * time.Second)
			if got := step + ":\n" + w.state(); got != want[0] {
				t.Errorf("%s\n\nupstream %s", got, want[0])
			}
			want = want[1:]
		})
	})
}

func TestTruncate(t *testing.T) {
	addresses := func(n int) []corev1.EndpointAddress { return make([]corev1.EndpointAddress, n) }
	for _, c := range []struct {
		name             string
		in, want         [][2]int // ready and not ready, of each subset
		wasTooManyOfThem bool
	}{
		{"few", [][2]int{{500, 500}}, [][2]int{{500, 500}}, false},
		{"not ready ones go first", [][2]int{{600, 600}}, [][2]int{{600, 400}}, true},
		{"in proportion", [][2]int{{300, 600}, {300, 200}}, [][2]int{{300, 300}, {300, 100}}, true},
		{"too many ready", [][2]int{{1500, 10}, {500, 0}}, [][2]int{{750, 0}, {250, 0}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var subsets []corev1.EndpointSubset
			for _, n := range c.in {
				subsets = append(subsets, corev1.EndpointSubset{Addresses: addresses(n[0]), NotReadyAddresses: addresses(n[1])})
			}
			if got := truncate(subsets); got != c.wasTooManyOfThem {
				t.Errorf("truncated: %t", got)
			}
			var got [][2]int
			for _, s := range subsets {
				got = append(got, [2]int{len(s.Addresses), len(s.NotReadyAddresses)})
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("left %v, want %v", got, c.want)
			}
		})
	}
}

func TestLeftoversOfAServiceThatWentMeanwhile(t *testing.T) {
	apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
		must(set.Kube.CoreV1().Endpoints(apitest.Namespace).Create(ctx, &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: "leftover"},
		}, metav1.CreateOptions{}))
		return New(set)
	}}.Run(t, func(t *testing.T, s *apitest.Server) {
		if _, err := s.Kube.CoreV1().Endpoints(apitest.Namespace).Get(ctx, "leftover", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("it is still there: %v", err)
		}
	})
}
