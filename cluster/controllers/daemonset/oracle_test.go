package daemonset_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/kubernetes/pkg/controller"
	upstream "k8s.io/kubernetes/pkg/controller/daemon"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// oracle is upstream's DaemonSet controller.
var oracle = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	apps, core := set.Informers.Apps().V1(), set.Informers.Core().V1()
	c, err := upstream.NewDaemonSetsController(context.Background(), apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(),
		set.Kube, flowcontrol.NewBackOff(time.Second, 15*time.Minute))
	if err != nil {
		panic(err)
	}
	return apitest.Upstream(func(ctx context.Context) { c.Run(ctx, 2) })
}}

func TestSameAsUpstream(t *testing.T) {
	for name, scenario := range map[string]apitest.Scenario{
		"nodes come, are tainted, labelled and go": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 3)
			create(t, s, agent())
			note("created")
			setNode(t, s, "n0", taint("full", corev1.TaintEffectNoSchedule))
			note("a taint that lets pods stay")
			setNode(t, s, "n1", taint("bad", corev1.TaintEffectNoExecute))
			note("a taint that does not")
			setNode(t, s, "n2", taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute))
			note("a taint that daemons tolerate")
			setNode(t, s, "n1", func(n *corev1.Node) { n.Spec.Taints = nil })
			note("taint removed")
			update(t, s, onlyOn(map[string]string{"n": "2"}), image("v1"))
			note("node selector")
			setNode(t, s, "n0", func(n *corev1.Node) { n.Spec.Taints = nil; n.Labels["n"] = "2" })
			note("another node matches")
			setNode(t, s, "n2", func(n *corev1.Node) { n.Labels["n"] = "9" })
			note("the first one no longer does")
		},
		"roll, undo": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 4)
			create(t, s, agent(rolling("0", "50%")))
			note("created")
			update(t, s, image("v2"))
			note("rolled")
			update(t, s, image("v1"))
			note("undone")
		},
		"roll with surge": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 4)
			create(t, s, agent(rolling("25%", "0")))
			note("created")
			update(t, s, image("v2"))
			note("rolled")
			update(t, s, image("v3"), onlyOn(map[string]string{"n": "1"}))
			note("rolled, and off most nodes")
		},
		"on delete": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 2)
			create(t, s, agent(onDelete))
			note("created")
			update(t, s, image("v2"))
			note("changed")
			if err := s.Kube.CoreV1().Pods(apitest.Namespace).Delete(context.Background(), podOn(t, s, "n0").Name,
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			note("one deleted")
		},
		"history limit": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			limit := int32(1)
			create(t, s, agent(func(ds *appsv1.DaemonSet) { ds.Spec.RevisionHistoryLimit = &limit }))
			for i := range 4 {
				note(fmt.Sprint("version ", i+1))
				update(t, s, image(fmt.Sprintf("v%d", i+2)))
			}
			note("last version")
		},
		"pods end": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 2)
			create(t, s, agent())
			note("created")
			s.End(t, podOn(t, s, "n0"), 1)
			note("failed")
			s.End(t, podOn(t, s, "n1"), 0)
			note("succeeded")
		},
		"host network": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent(func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.HostNetwork = true }))
			note("created")
			setNode(t, s, "n0", taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule))
			note("network unavailable")
		},
		"node affinity": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 3)
			create(t, s, agent(func(ds *appsv1.DaemonSet) {
				ds.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
						MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "n", Operator: corev1.NodeSelectorOpIn, Values: []string{"0", "2"}}},
					}}},
				}}
			}))
			note("created")
		},
		"selects everything": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent(func(ds *appsv1.DaemonSet) { ds.Spec.Selector = &metav1.LabelSelector{} }))
			note("created")
		},
		"orphans": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 2)
			create(t, s, agent())
			note("created")
			s.SetPod(t, podOn(t, s, "n0"), func(p *corev1.Pod) { p.OwnerReferences = nil })
			note("adopted again")
			s.SetPod(t, podOn(t, s, "n1"), func(p *corev1.Pod) { p.Labels["app"] = "other" })
			note("released")
		},
		"revisions are adopted and released": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent())
			note("created")
			revisions := s.Kube.AppsV1().ControllerRevisions(apitest.Namespace)
			set := func(f func(*appsv1.ControllerRevision)) {
				list, err := revisions.List(context.Background(), metav1.ListOptions{})
				if err != nil || len(list.Items) == 0 {
					t.Fatal(list, err)
				}
				f(&list.Items[0])
				if _, err := revisions.Update(context.Background(), &list.Items[0], metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			set(func(r *appsv1.ControllerRevision) { r.OwnerReferences = nil })
			note("orphaned")
			set(func(r *appsv1.ControllerRevision) { delete(r.Labels, appsv1.DefaultDaemonSetUniqueLabelKey) })
			note("without its hash")
		},
		"a second revision of the template": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent())
			note("created")
			revisions := s.Kube.AppsV1().ControllerRevisions(apitest.Namespace)
			list, err := revisions.List(context.Background(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 1 {
				t.Fatal(list, err)
			}
			second := list.Items[0].DeepCopy()
			second.Name, second.UID, second.ResourceVersion, second.Revision = "agent-second", "", "", 2
			second.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = "second"
			if _, err := revisions.Create(context.Background(), second, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			note("second")
			update(t, s, func(ds *appsv1.DaemonSet) { ds.Annotations["changed"] = "yes" })
			note("merged")
			update(t, s, image("v2"))
			note("rolled")
		},
		"hash collision": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			ds := agent()
			taken := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
				Name: "agent-" + controller.ComputeHash(&ds.Spec.Template, nil), Labels: map[string]string{"app": "other"},
			}}
			if _, err := s.Kube.AppsV1().ControllerRevisions(apitest.Namespace).Create(context.Background(), taken,
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			create(t, s, ds)
			note("created")
		},
		"surge past a node that takes no new pods": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 3)
			create(t, s, agent(rolling("1", "0")))
			note("created")
			setNode(t, s, "n0", taint("full", corev1.TaintEffectNoSchedule))
			update(t, s, image("v2"))
			note("rolled")
		},
		"surge where old pods are not ready": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 3)
			create(t, s, agent(rolling("1", "0")))
			note("created")
			setNode(t, s, "n1", taint("full", corev1.TaintEffectNoSchedule))
			for _, node := range []string{"n0", "n1"} {
				s.SetPod(t, podOn(t, s, node), func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
			}
			note("not ready")
			update(t, s, image("v2"))
			note("rolled")
		},
		"roll where old pods are not ready": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 3)
			create(t, s, agent())
			note("created")
			for _, node := range []string{"n0", "n1"} {
				s.SetPod(t, podOn(t, s, node), func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
			}
			update(t, s, image("v2"))
			note("rolled")
		},
		"on its way out": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent(func(ds *appsv1.DaemonSet) { ds.Finalizers = []string{metav1.FinalizerDeleteDependents} }))
			note("created")
			if err := s.Kube.AppsV1().DaemonSets(apitest.Namespace).Delete(context.Background(), "agent", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := s.Kube.CoreV1().Pods(apitest.Namespace).Delete(context.Background(), podOn(t, s, "n0").Name,
				metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			note("deleted, and its pod")
		},
		"a pod of either kind too many": func(t *testing.T, s *apitest.Server, note func(string)) {
			nodes(t, s, 1)
			create(t, s, agent(rolling("1", "0")))
			note("created")
			for _, name := range []string{"twin-a", "twin-b"} {
				twin := podOn(t, s, "n0").DeepCopy()
				twin.Name, twin.UID, twin.ResourceVersion, twin.GenerateName = name, "", "", ""
				s.Pass(time.Second)
				if _, err := s.Kube.CoreV1().Pods(apitest.Namespace).Create(context.Background(), twin, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			note("two more")
		},
	} {
		t.Run(name, func(t *testing.T) { apitest.SameAs(t, ours, oracle, scenario) })
	}
}

// TestPlacementIsUpstreams compares whether nodes fit with upstream's answer, by what is created.
func TestPlacementIsUpstreams(t *testing.T) {
	tolerate := func(key string, effect corev1.TaintEffect) change {
		return func(ds *appsv1.DaemonSet) {
			ds.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}}
		}
	}
	named := func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.NodeName = "n1" }
	for name, c := range map[string]struct {
		ds    *appsv1.DaemonSet
		taint func(*corev1.Node) // of n0
	}{
		"plain":                     {agent(), nil},
		"named":                     {agent(named), nil},
		"unschedulable":             {agent(), taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)},
		"disk pressure":             {agent(), taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)},
		"not ready":                 {agent(), taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)},
		"network unavailable":       {agent(), taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)},
		"tainted":                   {agent(), taint("x", corev1.TaintEffectNoSchedule)},
		"tolerated":                 {agent(tolerate("x", "")), taint("x", corev1.TaintEffectNoExecute)},
		"tolerated for another use": {agent(tolerate("x", corev1.TaintEffectNoSchedule)), taint("x", corev1.TaintEffectNoExecute)},
		"preferably not":            {agent(), taint("x", corev1.TaintEffectPreferNoSchedule)},
	} {
		t.Run(name, func(t *testing.T) {
			apitest.SameAs(t, ours, oracle, func(t *testing.T, s *apitest.Server, note func(string)) {
				nodes(t, s, 2)
				if c.taint != nil {
					setNode(t, s, "n0", c.taint)
				}
				create(t, s, c.ds)
				note("created")
			})
		})
	}
}
