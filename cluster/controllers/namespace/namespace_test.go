package namespace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
	upstream "k8s.io/kubernetes/pkg/controller/namespace"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/metatest"
)

const name = apitest.Namespace

var (
	pods       = corev1.SchemeGroupVersion.WithResource("pods")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
)

// world is an API with a namespace that has something of several kinds in it.
type world struct {
	*metatest.API
	*apitest.Server
	t *testing.T
}

type runner interface{ Run(context.Context) }

func ours(api *metatest.API) runner { return New(api.Set, api.Metadata, 0) }

func theirs(api *metatest.API) runner {
	return apitest.Upstream(func(ctx context.Context) {
		upstream.NewNamespaceController(ctx, api.Kube, api.Metadata,
			api.Kube.Discovery().ServerPreferredNamespacedResources,
			api.Informers.Core().V1().Namespaces(), 0, corev1.FinalizerKubernetes).Run(ctx, 2)
	})
}

// TestMain keeps logs out of the tests', and upstream's error handler too: it sleeps until some
// time after its last error, which another bubble's clock set.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func run(t *testing.T, build func(*metatest.API) runner, f func(w world)) {
	t.Helper()
	var api *metatest.API
	apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
		api = metatest.Of(set, metatest.WidgetList())
		set.Informers.Core().V1().Namespaces().Informer() // upstream asks for it when the others have started
		return build(api)
	}}.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{api, s, t}
		w.must(w.Create(corev1.SchemeGroupVersion.WithResource("namespaces"), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{metatest.NamespaceFinalizer}},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}))
		grace := int64(30)
		w.must(w.Create(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "web"},
			Spec:       corev1.PodSpec{NodeName: "node", TerminationGracePeriodSeconds: &grace},
		}))
		w.must(w.Create(configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "settings"}}))
		w.must(w.Create(configMaps, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "another", Name: "settings"}}))
		widget := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "w"}}
		widget.SetGroupVersionKind(metatest.WidgetKind)
		w.must(w.Create(metatest.Widgets, widget))
		s.Settle()
		f(w)
	})
}

func (w world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w world) deleteNamespace() {
	w.t.Helper()
	w.must(w.API.Set.Kube.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}))
	w.Settle()
}

func (w world) patch(gvr schema.GroupVersionResource, object, body string) {
	w.t.Helper()
	_, err := w.Metadata.Resource(gvr).Namespace(name).Patch(context.Background(), object, types.MergePatchType, []byte(body),
		metav1.PatchOptions{})
	w.must(err)
}

// leave ends the grace of a pod that is being deleted.
func (w world) leave(pod string) {
	w.Pass(10 * time.Second) // upstream starts after 5 s
	w.Leave(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: pod}})
	w.Settle()
}

// state is the namespace's phase and conditions, and what is in it.
func (w world) state() string {
	w.t.Helper()
	var out []string
	ns, err := w.API.Set.Kube.CoreV1().Namespaces().Get(context.Background(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		out = append(out, "gone")
	} else {
		w.must(err)
		out = append(out, fmt.Sprint(ns.Status.Phase, ns.Spec.Finalizers))
		for _, c := range ns.Status.Conditions {
			out = append(out, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
		}
		slices.Sort(out[1:])
	}
	for _, gvr := range []schema.GroupVersionResource{pods, configMaps, metatest.Widgets} {
		list, err := w.Metadata.Resource(gvr).List(context.Background(), metav1.ListOptions{})
		w.must(err)
		for _, obj := range list.Items {
			out = append(out, fmt.Sprintf("%s %s/%s deleted=%t", gvr.Resource, obj.Namespace, obj.Name, obj.DeletionTimestamp != nil))
		}
	}
	return strings.Join(out, "\n")
}

// TestAsUpstream plays the same deletion to upstream's controller and to ours.
func TestAsUpstream(t *testing.T) {
	scenarios := map[string]func(w world, note func(string)){
		"nothing in the way": func(w world, note func(string)) {
			note("made")
			w.deleteNamespace()
			note("deleted")
			w.leave("web")
			note("pod gone")
		},
		"finalizers": func(w world, note func(string)) {
			w.patch(configMaps, "settings", `{"metadata":{"finalizers":["example.com/slow","example.com/slower"]}}`)
			w.patch(metatest.Widgets, "w", `{"metadata":{"finalizers":["example.com/slow"]}}`)
			w.deleteNamespace()
			w.leave("web")
			note("pod gone")
			w.patch(metatest.Widgets, "w", `{"metadata":{"finalizers":null}}`)
			note("widget gone")
			w.patch(configMaps, "settings", `{"metadata":{"finalizers":null}}`)
			note("all gone")
		},
		"discovery fails": func(w world, note func(string)) {
			served := w.Served()
			w.Serve(served[:len(served)-1], &discovery.ErrGroupDiscoveryFailed{
				Groups: map[schema.GroupVersion]error{metatest.Widgets.GroupVersion(): errors.New("away")},
			})
			w.deleteNamespace()
			w.leave("web")
			note("pod gone")
			w.Serve(served, nil)
			note("discovery works")
		},
		"pods cannot be deleted": func(w world, note func(string)) {
			w.Refuse(func(verb, resource string) error {
				if verb == "delete" && resource == "pods" {
					return errors.New("no deletion today")
				}
				return nil
			})
			w.deleteNamespace()
			note("refused")
			w.Refuse(nil)
			note("allowed")
			w.leave("web")
			note("pod gone")
		},
	}
	for title, scenario := range scenarios {
		t.Run(title, func(t *testing.T) {
			var want []string
			run(t, theirs, func(w world) {
				scenario(w, func(step string) {
					w.Pass(10 * time.Minute)
					want = append(want, step+":\n"+w.state())
				})
			})
			run(t, ours, func(w world) {
				scenario(w, func(step string) {
					w.Pass(10 * time.Minute)
					if got := step + ":\n" + w.state(); len(want) == 0 || got != want[0] {
						w.t.Errorf("%s\n\nupstream %s", got, want[0])
					}
					want = want[1:]
				})
			})
		})
	}
}

func TestPodsGoFirstAndNothingWaitsLongerThanThey(t *testing.T) {
	run(t, ours, func(w world) {
		w.deleteNamespace()
		if s := w.state(); !strings.Contains(s, "pods default/web deleted=true") ||
			!strings.Contains(s, "configmaps default/settings deleted=false") {
			w.t.Errorf("while the pod takes its grace:\n%s", s)
		}
		w.leave("web")
		if s := w.state(); s != "gone\nconfigmaps another/settings deleted=false" {
			w.t.Errorf("when the pod has gone:\n%s", s)
		}
	})
}

func TestSettlesBeforeItBegins(t *testing.T) {
	build := func(api *metatest.API) runner { return New(api.Set, api.Metadata, 5*time.Second) }
	run(t, build, func(w world) {
		w.deleteNamespace()
		if s := w.state(); !strings.HasPrefix(s, "Active") {
			w.t.Errorf("at once:\n%s", s)
		}
		w.Pass(5 * time.Second)
		if s := w.state(); !strings.HasPrefix(s, "Terminating") {
			w.t.Errorf("after 5 s:\n%s", s)
		}
	})
}
