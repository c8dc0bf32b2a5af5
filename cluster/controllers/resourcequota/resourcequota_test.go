package resourcequota

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
)

const ns = apitest.Namespace

var ctx = context.Background()

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type world struct {
	*metatest.API
	*apitest.Server
	t *testing.T
}

func run(t *testing.T, f func(w world)) {
	t.Helper()
	var api *metatest.API
	apitest.Ours(func(set *client.Set) *frame.Controller {
		api = metatest.Of(set)
		return New(api.Set, api.Metadata)
	}).Run(t, func(t *testing.T, s *apitest.Server) { f(world{api, s, t}) })
}

func (w world) quota(name string, scopes []corev1.ResourceQuotaScope, hard ...string) {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}, Scopes: scopes},
	}
	for _, h := range hard {
		resourceName, limit, _ := strings.Cut(h, "=")
		q.Spec.Hard[corev1.ResourceName(resourceName)] = resource.MustParse(limit)
	}
	w.Settle() // what was made before shows
	must(w.Server.Kube.CoreV1().ResourceQuotas(ns).Create(ctx, q, metav1.CreateOptions{}))
	w.Pass(time.Second)
}

// want checks a quota's usage, "name=used/hard" of each resource in order.
func (w world) want(name string, want ...string) {
	w.t.Helper()
	q := must(w.Server.Kube.CoreV1().ResourceQuotas(ns).Get(ctx, name, metav1.GetOptions{}))
	var got []string
	for _, r := range slices.Sorted(maps.Keys(q.Status.Hard)) {
		used, hard := "none", q.Status.Hard[r]
		if u, ok := q.Status.Used[r]; ok {
			used = u.String()
		}
		got = append(got, fmt.Sprintf("%s=%s/%s", r, used, hard.String()))
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("quota %s has %v, want %v", name, got, want)
	}
}

func (w world) pod(name, cpu string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if cpu != "" {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	return must(w.Server.Kube.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{}))
}

func (w world) configMap(name string) {
	must(w.Server.Kube.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}},
		metav1.CreateOptions{}))
}

func TestUsageOfPods(t *testing.T) {
	run(t, func(w world) {
		a, b := w.pod("a", "500m"), w.pod("b", "1")
		w.pod("free", "")
		w.quota("all", nil, "pods=5", "requests.cpu=4", "services=2")
		w.quota("effort", []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}, "pods=5")
		w.want("all", "pods=3/5", "requests.cpu=1500m/4", "services=0/2")
		w.want("effort", "pods=1/5")
		// What is created is admission's to add, but it is corrected in the end.
		w.End(t, a, 0)
		w.Pass(time.Second)
		w.want("all", "pods=2/5", "requests.cpu=1/4", "services=0/2")
		if err := w.Server.Kube.CoreV1().Pods(ns).Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Pass(time.Second)
		w.want("all", "pods=1/5", "requests.cpu=0/4", "services=0/2")
		w.pod("c", "2")
		w.Pass(6 * time.Minute)
		w.want("all", "pods=2/5", "requests.cpu=2/4", "services=0/2")
	})
}

func TestCountsOfAnyKind(t *testing.T) {
	run(t, func(w world) {
		w.configMap("a")
		w.configMap("b")
		w.quota("count", nil, "count/configmaps=5", "configmaps=4", "count/widgets.example.com=1", "count/deployments.apps=3")
		w.want("count", "configmaps=2/4", "count/configmaps=2/5", "count/deployments.apps=0/3", "count/widgets.example.com=none/1")
		if err := w.Server.Kube.CoreV1().ConfigMaps(ns).Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Pass(time.Second)
		w.want("count", "configmaps=1/4", "count/configmaps=1/5", "count/deployments.apps=0/3", "count/widgets.example.com=none/1")
		// A kind that comes later is found within five minutes.
		w.Serve(append(w.Served(), metatest.WidgetList()), nil)
		widget := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "w"}}
		widget.SetGroupVersionKind(metatest.WidgetKind)
		if err := w.Create(metatest.Widgets, widget); err != nil {
			t.Fatal(err)
		}
		w.Pass(6 * time.Minute)
		w.want("count", "configmaps=1/4", "count/configmaps=1/5", "count/deployments.apps=0/3", "count/widgets.example.com=1/1")
	})
}

// A kind whose server does not list it costs the quota that kind's usage, no other and no worker.
func TestAKindThatIsNotListed(t *testing.T) {
	run(t, func(w world) {
		var fine atomic.Bool
		w.Metadata.PrependReactor("list", "configmaps", func(ktesting.Action) (bool, runtime.Object, error) {
			return !fine.Load(), nil, apierrors.NewResourceExpired("its server is away") // reflectors do not log this
		})
		w.configMap("a")
		w.pod("a", "1")
		for n := range 2 * workers {
			w.quota(fmt.Sprintf("away%d", n), nil, "count/configmaps=5", "pods=5")
		}
		w.quota("other", nil, "pods=5")
		w.Pass(time.Minute)
		w.want("away0", "count/configmaps=none/5", "pods=1/5")
		w.want("other", "pods=1/5")
		fine.Store(true)
		w.Pass(10 * time.Minute)
		w.want("away0", "count/configmaps=1/5", "pods=1/5")
	})
}

// A quota counts itself, and those that are left.
func TestCountsOfQuotas(t *testing.T) {
	run(t, func(w world) {
		w.quota("a", nil, "resourcequotas=5")
		w.want("a", "resourcequotas=1/5")
		w.quota("b", nil, "count/resourcequotas=5")
		w.want("b", "count/resourcequotas=2/5")
		if err := w.Server.Kube.CoreV1().ResourceQuotas(ns).Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Pass(time.Second)
		w.want("b", "count/resourcequotas=1/5")
	})
}

func TestChangedLimits(t *testing.T) {
	run(t, func(w world) {
		w.pod("a", "")
		w.quota("q", nil, "pods=5", "services=1")
		quotas := w.Server.Kube.CoreV1().ResourceQuotas(ns)
		q := must(quotas.Get(ctx, "q", metav1.GetOptions{}))
		q.Spec.Hard = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("7")}
		must(quotas.Update(ctx, q, metav1.UpdateOptions{}))
		w.Pass(time.Second)
		w.want("q", "pods=1/7")
		w.Writes()
		w.Pass(time.Hour)
		if writes := w.Writes(); len(writes) > 0 {
			t.Errorf("a quota that is right is written again: %v", writes)
		}
	})
}
