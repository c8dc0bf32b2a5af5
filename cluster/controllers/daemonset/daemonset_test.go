package daemonset_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	upstream "k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/daemon/util"

	"github.com/coracle-project/coracle/cluster/controllers/daemonset"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

var ours = apitest.Ours(daemonset.New).As("daemon-set-controller")

type change = func(*appsv1.DaemonSet)

// agent is a DaemonSet with the API's defaults.
func agent(changes ...change) *appsv1.DaemonSet {
	history := int32(10)
	ds := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: "agent", Namespace: apitest.Namespace, Labels: map[string]string{"app": "agent"},
			Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "1"},
		},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "agent"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
			RevisionHistoryLimit: &history,
		},
	}
	rolling("0", "1")(ds)
	for _, f := range changes {
		f(ds)
	}
	return ds
}

func rolling(surge, unavailable string) change {
	return func(ds *appsv1.DaemonSet) {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &s, MaxUnavailable: &u},
		}
	}
}

func onDelete(ds *appsv1.DaemonSet) {
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
}

// image changes the template, and with it the deprecated generation as the API does.
func image(name string) change {
	return func(ds *appsv1.DaemonSet) {
		ds.Spec.Template.Spec.Containers[0].Image = name
		ds.Annotations[appsv1.DeprecatedTemplateGeneration] = fmt.Sprint(ds.Generation + 1)
	}
}

func onlyOn(labels map[string]string) change {
	return func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeSelector = labels }
}

func create(t *testing.T, s *apitest.Server, ds *appsv1.DaemonSet) {
	t.Helper()
	if _, err := s.Kube.AppsV1().DaemonSets(ds.Namespace).Create(context.Background(), ds, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func get(t *testing.T, s *apitest.Server) *appsv1.DaemonSet {
	t.Helper()
	ds, err := s.Kube.AppsV1().DaemonSets(apitest.Namespace).Get(context.Background(), "agent", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

func update(t *testing.T, s *apitest.Server, changes ...change) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		ds := get(t, s)
		for _, f := range changes {
			f(ds)
		}
		_, err := s.Kube.AppsV1().DaemonSets(ds.Namespace).Update(context.Background(), ds, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func nodes(t *testing.T, s *apitest.Server, n int) {
	t.Helper()
	for i := range n {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: map[string]string{"n": fmt.Sprint(i)}}}
		if _, err := s.Kube.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.Settle()
}

func setNode(t *testing.T, s *apitest.Server, name string, f func(*corev1.Node)) {
	t.Helper()
	node, err := s.Kube.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f(node)
	if _, err := s.Kube.CoreV1().Nodes().Update(context.Background(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func podOn(t *testing.T, s *apitest.Server, node string) *corev1.Pod {
	t.Helper()
	for _, pod := range s.Pods(t) {
		if on, err := util.GetTargetNodeName(pod); err == nil && on == node && pod.DeletionTimestamp == nil {
			return pod
		}
	}
	t.Fatalf("no pod on %s", node)
	return nil
}

func taint(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: key, Effect: effect}} }
}

func TestCreatesAndThenRests(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		nodes(t, s, 5)
		s.Writes()
		create(t, s, agent())
		want := map[string]int{"create controllerrevisions": 1, "create pods": 5, "update daemonsets/status": 1}
		if got := s.Writes(); !maps.Equal(got, want) {
			t.Errorf("writes = %v, want %v", got, want)
		}
		s.Converge(t, nil)
		s.Writes()
		for i := range 5 { // heartbeats
			setNode(t, s, fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Annotations = map[string]string{"x": "y"} })
		}
		s.Pass(time.Hour)
		if got := s.Writes(); len(got) > 0 {
			t.Errorf("idle, but wrote %v", got)
		}
	})
}

// images returns the images of pods that are not being deleted, by node.
func images(t *testing.T, s *apitest.Server) map[string][]string {
	t.Helper()
	on := map[string][]string{}
	for _, pod := range s.Pods(t) {
		if pod.DeletionTimestamp == nil {
			node, err := util.GetTargetNodeName(pod)
			if err != nil {
				t.Error(err)
			}
			on[node] = append(on[node], pod.Spec.Containers[0].Image)
		}
	}
	return on
}

func TestRollsWithinItsLimits(t *testing.T) {
	for _, c := range []struct {
		surge, unavailable   string
		extra, mostDownNodes int
	}{
		{"0", "1", 0, 1},
		{"0", "50%", 0, 2},
		{"0", "100%", 0, 4},
		{"1", "0", 1, 0},
		{"50%", "0", 2, 0},
		{"0%", "0%", 0, 1}, // impossible: taken as one unavailable
	} {
		t.Run("surge "+c.surge+", unavailable "+c.unavailable, func(t *testing.T) {
			ours.Run(t, func(t *testing.T, s *apitest.Server) {
				nodes(t, s, 4)
				create(t, s, agent(rolling(c.surge, c.unavailable), func(ds *appsv1.DaemonSet) { ds.Spec.MinReadySeconds = 7 }))
				s.Converge(t, nil)
				s.Pass(10 * time.Second)
				update(t, s, image("v2"))
				s.Converge(t, func() {
					s.Pass(10 * time.Second)
					extra, down := 0, 0
					for i := range 4 {
						ready := 0
						for _, pod := range s.Pods(t) {
							if pod.Spec.NodeName == fmt.Sprintf("n%d", i) && pod.DeletionTimestamp == nil && len(pod.Status.Conditions) > 0 {
								ready++
							}
						}
						if ready == 0 {
							down++
						}
						extra += max(len(images(t, s)[fmt.Sprintf("n%d", i)])-1, 0)
					}
					if extra > c.extra || down > c.mostDownNodes {
						t.Errorf("%d extra pods (at most %d), %d nodes down (at most %d)", extra, c.extra, down, c.mostDownNodes)
					}
				})
				s.Pass(10 * time.Second)
				for node, on := range images(t, s) {
					if !slices.Equal(on, []string{"v2"}) {
						t.Errorf("node %s ends with %v", node, on)
					}
				}
				status := get(t, s).Status
				if status.UpdatedNumberScheduled != 4 || status.NumberAvailable != 4 || status.NumberUnavailable != 0 {
					t.Errorf("status = %+v", status)
				}
			})
		})
	}
}

// TestFailingPodsBackOff has the pod of a node fail at once, again and again.
func TestFailingPodsBackOff(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		nodes(t, s, 1)
		create(t, s, agent())
		s.Settle()
		s.Writes()
		created := 0
		for range 60 * 10 { // ten minutes
			for _, pod := range s.Pods(t) {
				if pod.Status.Phase == "" {
					s.End(t, pod, 1)
				}
			}
			s.Pass(time.Second)
			created += s.Writes()["create pods"]
		}
		// 1 + 2 + 4 + … + 256 s are 511 s: the tenth replacement is due within ten minutes.
		if created < 8 || created > 11 {
			t.Errorf("%d replacements in ten minutes", created)
		}
	})
}

func TestPodsMeantForLostNodesGo(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		nodes(t, s, 2)
		create(t, s, agent())
		if err := s.Kube.CoreV1().Nodes().Delete(context.Background(), "n0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Start(t, podOn(t, s, "n1")) // any event
		s.Settle()
		if got := images(t, s); len(got["n0"]) != 0 || len(got["n1"]) != 1 {
			t.Errorf("pods = %v", got)
		}
	})
}

func TestDuplicateRevisionsAreMerged(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		nodes(t, s, 2)
		create(t, s, agent())
		s.Converge(t, nil)
		revisions := s.Kube.AppsV1().ControllerRevisions(apitest.Namespace)
		list, err := revisions.List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("revisions = %v (%v)", list.Items, err)
		}
		if same, err := upstream.Match(get(t, s), &list.Items[0]); err != nil || !same {
			t.Errorf("upstream does not know its own: %v, %v", same, err)
		}
		twin := list.Items[0].DeepCopy()
		twin.Name, twin.UID, twin.ResourceVersion, twin.Revision = "agent-twin", "", "", 7
		delete(twin.Labels, appsv1.DefaultDaemonSetUniqueLabelKey)
		if _, err := revisions.Create(context.Background(), twin, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Converge(t, nil)
		if list, err = revisions.List(context.Background(), metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
			t.Errorf("revisions = %v (%v), want both until the DaemonSet changes", list.Items, err)
		}
		update(t, s, func(ds *appsv1.DaemonSet) { ds.Annotations = map[string]string{"changed": "yes"} })
		s.Converge(t, nil)
		list, err = revisions.List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "agent-twin" {
			t.Errorf("revisions = %v (%v), want the twin alone", list.Items, err)
		}
		for _, pod := range s.Pods(t) {
			if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] != "agent-twin" || pod.DeletionTimestamp != nil {
				t.Errorf("pod %s: %v, deleted %v", pod.Name, pod.Labels, pod.DeletionTimestamp)
			}
		}
	})
}

func TestSurvivesCrashes(t *testing.T) {
	for name, strategy := range map[string]change{"unavailable": rolling("0", "1"), "surge": rolling("1", "0")} {
		t.Run(name, func(t *testing.T) {
			ours.Survives(t, func(t *testing.T, s *apitest.Server, note func(string)) {
				nodes(t, s, 3)
				create(t, s, agent(strategy))
				note("created")
				update(t, s, image("v2"))
				note("rolled")
				update(t, s, image("v1"), onlyOn(map[string]string{"n": "1"}))
				note("on one node only")
			})
		})
	}
}
