package podgc

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
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	oracle "k8s.io/kubernetes/pkg/controller/podgc"

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

const threshold = 3

var own = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	kube = set.Kube.(*fake.Clientset)
	return must(New(set, threshold))
}}.As("pod-garbage-collector")

// kube is the client of the controllers that run.
var kube *fake.Clientset

var theirs = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	kube = set.Kube.(*fake.Clientset)
	core := set.Informers.Core().V1()
	core.Pods().Informer()
	core.Nodes().Informer()
	return apitest.Upstream(func(ctx context.Context) {
		oracle.NewPodGC(ctx, set.Kube, core.Pods(), core.Nodes(), threshold).Run(ctx)
	})
}}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var ctx = context.Background()

type world struct {
	*apitest.Server
	t *testing.T
}

// force lets a deletion without grace delete at once, which apitest's does not.
func (w world) force() {
	kube.PrependReactor("delete", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
		d := action.(ktesting.DeleteActionImpl)
		if d.DeleteOptions.GracePeriodSeconds == nil || *d.DeleteOptions.GracePeriodSeconds != 0 {
			return false, nil, nil
		}
		if _, err := w.Kube.CoreV1().Pods(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{}); err != nil {
			return true, nil, err
		}
		w.set(d.Name, func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64)
		})
		return true, nil, nil
	})
}

func (w world) set(pod string, change func(*corev1.Pod)) {
	w.SetPod(w.t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: pod}}, change)
}

func (w world) node(name string, ready corev1.ConditionStatus, taints ...corev1.Taint) {
	must(w.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
	}, metav1.CreateOptions{}))
}

func (w world) pod(name, node string, change func(*corev1.Pod)) {
	must(w.Kube.CoreV1().Pods(apitest.Namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: apitest.Namespace, Name: name},
	}, metav1.CreateOptions{}))
	w.set(name, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		if change != nil {
			change(p)
		}
	})
}

// leaving is being deleted, and kept by a finalizer.
func leaving(p *corev1.Pod) {
	p.Finalizers = []string{"example.com/slow"}
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(30))
}

func (w world) state() string {
	var out []string
	for _, p := range w.Pods(w.t) {
		line := fmt.Sprintf("%s on %q %s deleted=%t", p.Name, p.Spec.NodeName, p.Status.Phase, p.DeletionTimestamp != nil)
		for _, c := range p.Status.Conditions {
			line += fmt.Sprintf(" %s=%s(%s: %s)", c.Type, c.Status, c.Reason, c.Message)
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestAsUpstream has upstream's controller and ours clean up the same.
func TestAsUpstream(t *testing.T) {
	scenario := func(w world, note func(string)) {
		w.force()
		w.node("here", corev1.ConditionTrue)
		w.node("off", corev1.ConditionFalse, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
		w.node("off-they-say", corev1.ConditionTrue, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
		w.pod("stays", "here", nil)
		w.pod("leaves", "here", leaving)
		w.pod("lost", "gone", nil)
		w.pod("lost-and-kept", "gone", leaving)
		w.pod("lost-and-ended", "gone", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		w.pod("off-stays", "off", nil)
		w.pod("off-leaves", "off", leaving)
		w.pod("ready-leaves", "off-they-say", leaving)
		w.pod("unbound", "", nil)
		w.pod("unbound-leaves", "", leaving)
		w.Settle()
		note("made")
		w.pod("bound-to-nobody", "never-was", nil)
		if err := w.Kube.CoreV1().Nodes().Delete(ctx, "off", metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
		note("a node went")
		for i := range 6 {
			w.pod(fmt.Sprint("done-", i), "here", func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodFailed
				if i == 4 {
					p.Status.Reason = "Evicted"
				}
				p.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(-i) * time.Minute))
			})
		}
		note("too many have ended")
	}
	var want []string
	theirs.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) {
			w.Pass(3 * time.Minute)
			want = append(want, step+":\n"+w.state())
		})
	})
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		scenario(w, func(step string) {
			w.Pass(3 * time.Minute)
			if got := step + ":\n" + w.state(); got != want[0] {
				t.Errorf("%s\n\nupstream %s", got, want[0])
			}
			want = want[1:]
		})
	})
}

func TestANodeThatComesBackInTimeKeepsItsPods(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		w.force()
		w.node("n", corev1.ConditionTrue)
		w.pod("web", "n", nil)
		for range 3 {
			if err := w.Kube.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			w.Pass(30 * time.Second)
			w.node("n", corev1.ConditionTrue)
			w.Pass(5 * time.Second)
		}
		w.Pass(time.Hour)
		if got := w.state(); got != `web on "n" Running deleted=false` {
			t.Error(got)
		}
	})
}

// A StatefulSet's next pod has the name of the last one. The informer may not have it yet.
func TestTheNextPodOfTheNameStays(t *testing.T) {
	own.Run(t, func(t *testing.T, s *apitest.Server) {
		w := world{s, t}
		w.node("n", corev1.ConditionTrue)
		w.pod("web-0", "n", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		last := must(w.Kube.CoreV1().Pods(apitest.Namespace).Get(ctx, "web-0", metav1.GetOptions{})).DeepCopy()
		last.UID = "of-the-last-one"
		c := &controller{set: &client.Set{Kube: w.Kube}}
		if err := c.remove(ctx, last, nil); err != nil {
			t.Errorf("a pod that is gone: %v", err)
		}
		if got := w.state(); got != `web-0 on "n" Succeeded deleted=false` {
			t.Error(got)
		}
	})
}
