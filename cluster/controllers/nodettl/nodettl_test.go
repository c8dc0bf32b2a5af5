package nodettl

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

func TestAnnotationFollowsTheClustersSize(t *testing.T) {
	apitest.Ours(New).As("ttl-controller").Run(t, func(t *testing.T, s *apitest.Server) {
		nodes := s.Kube.CoreV1().Nodes()
		want := func(seconds string) {
			t.Helper()
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
