package nodettl

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/internal/nodepatch"
)

func TestAnnotationFollowsTheClustersSize(t *testing.T) {
	apitest.Ours(func(set *client.Set) *frame.Controller {
		return New(set, nodepatch.New(set.Kube.CoreV1().Nodes()))
	}).As("ttl-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		nodes := s.Kube.CoreV1().Nodes()
		want := func(seconds string) {
			t.Helper()
			s.Pass(settle)
			s.Settle()
			all, err := nodes.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, node := range all.Items {
				if got := node.Annotations[corev1.ObjectTTLAnnotationKey]; got != seconds {
					t.Fatalf("of %d nodes, %s has %q, want %s", len(all.Items), node.Name, got, seconds)
				}
			}
		}
		name := func(n int) string { return fmt.Sprintf("n%d", n) }
		add := func(from, to int) {
			for n := from; n < to; n++ {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name(n), Annotations: map[string]string{"other": "stays"}}}
				if _, err := nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		remove := func(from, to int) {
			for n := from; n < to; n++ {
				if err := nodes.Delete(t.Context(), name(n), metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		add(0, 100)
		want("0")
		if node, err := nodes.Get(t.Context(), name(0), metav1.GetOptions{}); err != nil || node.Annotations["other"] != "stays" {
			t.Errorf("other annotations: %v, %v", node.Annotations, err)
		}
		add(100, 101)
		want("15")
		remove(90, 101)
		want("15")
		remove(89, 90)
		want("0")
	})
}

// nodes counts how often all are listed.
type nodes struct {
	corelisters.NodeLister
	all    map[string]*corev1.Node
	listed int
}

func (n *nodes) List(labels.Selector) ([]*corev1.Node, error) {
	n.listed++
	return slices.Collect(maps.Values(n.all)), nil
}

func (n *nodes) Get(name string) (*corev1.Node, error) {
	if node := n.all[name]; node != nil {
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

// A change of one node looks at no other, and one that brings the cluster to another size wakes all
// nodes once, some seconds later.
func TestNodesAreCountedCheaply(t *testing.T) {
	n := &nodes{all: map[string]*corev1.Node{}}
	var later, woken []string
	c := &controller{
		nodes: n, known: map[string]struct{}{}, add: func(key string) { woken = append(woken, key) },
		later: func(key string, _ time.Duration) { later = append(later, key) },
	}
	add := func(i int) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
		n.all[node.Name] = node
		if keys := c.concerned(node); !slices.Equal(keys, []string{node.Name}) {
			t.Errorf("node %d wakes %v", i, keys)
		}
	}
	for i := range 80 { // there when it starts
		n.all[fmt.Sprint(i)] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
	}
	for i := range 100 {
		add(i)
		if want := max(80, i+1); len(c.known) != want {
			t.Errorf("%d nodes were counted, want %d", len(c.known), want)
		}
	}
	if len(later) > 0 {
		t.Errorf("woken at the same size: %q", later)
	}
	add(100)
	if !slices.Equal(later, []string{everyNode}) {
		t.Fatalf("woken for another size: %q", later)
	}
	if err := c.sync(t.Context(), everyNode); err != nil || len(woken) != 101 {
		t.Errorf("%d nodes are woken: %v", len(woken), err)
	}
	for i := range 50 {
		node := n.all[fmt.Sprint(i)]
		delete(n.all, node.Name)
		c.concerned(node)
	}
	if len(c.known) != 51 || n.listed != 2 {
		t.Errorf("counted %d nodes, want 51; listed all %d times, want 2: at the start and for another size", len(c.known), n.listed)
	}
}
