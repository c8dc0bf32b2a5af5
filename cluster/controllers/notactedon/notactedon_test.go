package notactedon

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/kinds"
	"github.com/coracle-project/coracle/cluster/health"
	"github.com/coracle-project/coracle/cluster/unserved"
)

var (
	ingresses = kinds.Resource{GroupVersionResource: schema.GroupVersionResource{
		Group: "networking.k8s.io", Version: "v1",
		Resource: "ingresses",
	}, Kind: "Ingress", Namespaced: true}
	classes = kinds.Resource{GroupVersionResource: schema.GroupVersionResource{
		Group: "networking.k8s.io", Version: "v1",
		Resource: "ingressclasses",
	}, Kind: "IngressClass"}
	policies = kinds.Resource{GroupVersionResource: schema.GroupVersionResource{
		Group: "networking.k8s.io", Version: "v1",
		Resource: "networkpolicies",
	}, Kind: "NetworkPolicy", Namespaced: true}
	deployments = kinds.Resource{
		GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		Kind:                 "Deployment", Namespaced: true,
	}
)

// api is an API in memory, with controllers over it.
type api struct {
	*fake.Clientset
	board   health.Board
	further unserved.Kinds
	stops   []func()
}

// run runs f in a synctest bubble.
func run(t *testing.T, f func(t *testing.T, s *api)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &api{Clientset: fake.NewClientset()}
		defer func() {
			for _, stop := range s.stops {
				stop()
			}
		}()
		f(t, s)
	})
}

// start runs a controller; a second one is as after a restart.
func (s *api) start(t *testing.T) *Controller {
	c := New(&client.Set{Kube: s}, s.further, s.board.Add("not acted on"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	s.stops = append(s.stops, func() { cancel(); <-done })
	return c
}

// pass lets time pass, and whatever it brings happen.
func (s *api) pass(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

func (s *api) settle() { s.pass(100 * time.Millisecond) }

func metadataOf(namespace, name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		UID: types.UID("uid-of-" + namespace + "-" + name),
	}}
}

func (s *api) events(t *testing.T) []corev1.Event {
	t.Helper()
	list, err := s.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// An object has one Event, however often it changes, and after a restart.
func TestOneEvent(t *testing.T) {
	run(t, func(t *testing.T, s *api) {
		c := s.start(t)
		c.Exists(deployments, metadataOf("team", "web"))
		s.settle()
		if all := s.events(t); len(all) != 0 {
			t.Errorf("a Deployment, which is acted on, has %v", all)
		}
		if state := s.board.States()[0]; !state.Healthy || len(state.Warnings) != 0 {
			t.Errorf("%+v", state)
		}
		web, class := metadataOf("team", "web"), metadataOf("", strings.Repeat("class.", 41)+"x")
		for range 3 {
			c.Exists(ingresses, web)
			c.Exists(classes, class)
			s.settle()
		}
		after := s.start(t)
		after.Exists(ingresses, web)
		after.Exists(classes, class)
		s.settle()
		all := s.events(t)
		if len(all) != 2 {
			t.Fatalf("%d events: %+v", len(all), all)
		}
		for _, e := range all {
			if e.Reason != Reason || e.Type != corev1.EventTypeWarning || e.Count != 1 || len(e.Name) > 253 {
				t.Errorf("%+v", e)
			}
			switch e.Namespace {
			case "team":
				if o := e.InvolvedObject; o.Kind != "Ingress" || o.Name != "web" || o.APIVersion != "networking.k8s.io/v1" || o.UID != web.UID ||
					!strings.Contains(e.Message, `Ingress "web" is stored but not acted on by this cluster: no traffic`) {
					t.Errorf("%+v", e)
				}
			case "default":
				if o := e.InvolvedObject; o.Kind != "IngressClass" || o.Namespace != "" {
					t.Errorf("%+v", e)
				}
			}
		}
		if w := s.board.States()[0].Warnings; len(w) != 1 || !strings.HasSuffix(w[0], "Ingress (1), IngressClass (1)") {
			t.Errorf("warnings %q", w)
		}
		c.Gone(web.UID)
		c.Gone(web.UID)
		c.Gone(class.UID)
		if w := s.board.States()[0].Warnings; len(w) != 0 {
			t.Errorf("warnings when they are gone: %q", w)
		}
	})
}

// A cluster that leaves network policies to others says so of each, and another one does not.
func TestPoliciesThatAreLeftToOthers(t *testing.T) {
	run(t, func(t *testing.T, s *api) {
		c := s.start(t)
		c.Exists(policies, metadataOf("team", "wall"))
		s.settle()
		if all := s.events(t); len(all) != 0 {
			t.Errorf("a NetworkPolicy that is enforced has %v", all)
		}
		s.further = unserved.Policies
		c = s.start(t)
		c.Exists(policies, metadataOf("team", "wall"))
		s.settle()
		all := s.events(t)
		if len(all) != 1 || !strings.Contains(all[0].Message,
			`NetworkPolicy "wall" is stored but not acted on by this cluster: with --network-policies=false`) {
			t.Errorf("events %+v", all)
		}
	})
}

// Many objects at once do not flood the API server.
func TestRate(t *testing.T) {
	run(t, func(t *testing.T, s *api) {
		c := s.start(t)
		const objects = 90
		for i := range objects {
			c.Exists(ingresses, metadataOf("team", fmt.Sprint("web-", i)))
		}
		s.settle()
		if n := len(s.events(t)); n < burst || n > burst+1 {
			t.Errorf("%d events at once, want %d", n, burst)
		}
		s.pass(10 * time.Second)
		if n := len(s.events(t)); n < burst+10*perSecond-1 || n > burst+10*perSecond+2 {
			t.Errorf("%d events after ten seconds", n)
		}
		s.pass(time.Minute)
		if n := len(s.events(t)); n != objects {
			t.Errorf("%d events in the end, want %d", n, objects)
		}
	})
}
