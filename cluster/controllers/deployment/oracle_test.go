package deployment_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstreamdeployment "k8s.io/kubernetes/pkg/controller/deployment"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"
	upstreamreplicaset "k8s.io/kubernetes/pkg/controller/replicaset"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// oracle is upstream's Deployment and ReplicaSet controllers.
var oracle = apitest.Controllers{
	func(set *client.Set) interface{ Run(context.Context) } {
		apps := set.Informers.Apps().V1()
		c, err := upstreamdeployment.NewDeploymentController(context.Background(), apps.Deployments(), apps.ReplicaSets(),
			set.Informers.Core().V1().Pods(), set.Kube)
		if err != nil {
			panic(err)
		}
		return apitest.Upstream(func(ctx context.Context) { c.Run(ctx, 5) })
	},
	func(set *client.Set) interface{ Run(context.Context) } {
		c := upstreamreplicaset.NewReplicaSetController(context.Background(), set.Informers.Apps().V1().ReplicaSets(),
			set.Informers.Core().V1().Pods(), set.Kube, 500)
		return apitest.Upstream(func(ctx context.Context) { c.Run(ctx, 5) })
	},
}

func TestSameAsUpstream(t *testing.T) {
	annotate := func(k, v string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			if d.Annotations == nil {
				d.Annotations = map[string]string{}
			}
			d.Annotations[k] = v
		}
	}
	for name, scenario := range map[string]apitest.Scenario{
		"roll, undo, scale": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(4, annotate("team", "a")))
			note("created")
			change(t, s, image("v2"), annotate("kubernetes.io/change-cause", "new image"))
			note("rolled")
			change(t, s, image("v1"))
			note("undone")
			change(t, s, scale(7))
			note("scaled up")
			change(t, s, scale(0))
			note("scaled to nothing")
			change(t, s, image("v3"), scale(2))
			note("rolled and scaled")
			change(t, s, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 5 })
			note("minReadySeconds changed")
		},
		"recreate": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(3, recreate))
			note("created")
			change(t, s, image("v2"))
			note("rolled")
			change(t, s, scale(5))
			note("scaled")
		},
		"pause and resume": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(3))
			note("created")
			change(t, s, paused(true), image("v2"))
			note("paused")
			change(t, s, scale(5))
			note("scaled")
			change(t, s, paused(false))
			note("resumed")
		},
		"created paused": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(2, paused(true)))
			note("created")
			change(t, s, paused(false))
			note("resumed")
		},
		"history limit": func(t *testing.T, s *apitest.Server, note func(string)) {
			limit := int32(1)
			create(t, s, web(1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = &limit }))
			for i := range 4 {
				note(fmt.Sprint("version ", i+1))
				change(t, s, image(fmt.Sprintf("v%d", i+2)))
			}
			note("last version")
		},
		"deprecated rollback": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(1, annotate("team", "a")))
			note("created")
			change(t, s, image("v2"), annotate("team", "b"))
			note("rolled")
			change(t, s, annotate(appsv1.DeprecatedRollbackTo, "0"))
			note("back to the last")
			change(t, s, annotate(appsv1.DeprecatedRollbackTo, "2"))
			note("back to 2")
			change(t, s, annotate(appsv1.DeprecatedRollbackTo, "17"))
			note("back to what never was")
		},
		"without progress deadline": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(2, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }))
			note("created")
			change(t, s, image("v2"))
			note("rolled")
		},
		"adopts and releases ReplicaSets": func(t *testing.T, s *apitest.Server, note func(string)) {
			orphan := &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: "orphan", Namespace: apitest.Namespace, Labels: map[string]string{"app": "web"}},
				Spec: appsv1.ReplicaSetSpec{
					Replicas: new(int32),
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "x": "y"}},
					Template: corev1.PodTemplateSpec{
						ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "x": "y"}},
						Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v0"}}},
					},
				},
			}
			*orphan.Spec.Replicas = 2
			if _, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Create(context.Background(), orphan, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			note("orphan")
			create(t, s, web(2))
			note("adopted")
			rs := sets(t, s)["v0"]
			rs.Labels = map[string]string{"app": "other"}
			if _, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Update(context.Background(), rs, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			note("released")
		},
		"on its way out": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(2, func(d *appsv1.Deployment) { d.Finalizers = []string{metav1.FinalizerDeleteDependents} }))
			note("created")
			if err := s.Kube.AppsV1().Deployments(apitest.Namespace).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			change(t, s, image("v2"), scale(5))
			note("deleted and changed")
		},
		"an old ReplicaSet is scaled up by hand": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(2))
			note("created")
			change(t, s, image("v2"))
			note("rolled")
			rs := sets(t, s)["v1"]
			*rs.Spec.Replicas = 3
			rs.Annotations[util.DesiredReplicasAnnotation] = "3"
			if _, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Update(context.Background(), rs, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			note("scaled up")
		},
		"deadline missed, then changed": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(1, func(d *appsv1.Deployment) { *d.Spec.ProgressDeadlineSeconds = 60 }))
			s.Pass(2 * time.Minute)
			change(t, s, paused(true))
			s.Pass(time.Minute)
			change(t, s, paused(false))
			note("late")
		},
		"selects everything": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, web(2, func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} }))
			note("created")
		},
	} {
		t.Run(name, func(t *testing.T) { apitest.SameAs(t, ours, oracle, scenario) })
	}
}

// TestProportionsAreUpstreams scales in the middle of a rollout whose new pods never start, and
// compares the ReplicaSets' sizes with what upstream's controllers make of it.
func TestProportionsAreUpstreams(t *testing.T) {
	for _, c := range []struct{ from, to, last int32 }{
		{10, 20, 5}, {10, 15, 0}, {10, 11, 30}, {5, 50, 6}, {3, 2, 1}, {10, 9, 8},
	} {
		t.Run(fmt.Sprint(c.from, " to ", c.to, " to ", c.last), func(t *testing.T) {
			play := func(controllers apitest.Controllers) (history []string) {
				controllers.Run(t, func(t *testing.T, s *apitest.Server) {
					create(t, s, web(c.from, rolling("3", "2")))
					s.Converge(t, nil)
					for _, next := range []func(*appsv1.Deployment){image("v2"), scale(c.to), image("v3"), scale(c.last)} {
						change(t, s, next)
						for range 5 { // old pods leave, new ones stay pending
							for _, pod := range s.Pods(t) {
								if pod.DeletionTimestamp != nil {
									s.Leave(t, pod)
								}
							}
							s.Pass(time.Second)
						}
						history = append(history, fmt.Sprint(sizes(t, s)))
					}
				})
				return history
			}
			got, want := play(ours), play(oracle)
			if !slices.Equal(got, want) {
				t.Errorf("sizes = %v, upstream's %v", got, want)
			}
		})
	}
}

// TestSurvivesCrashes lets the controllers of Deployments and ReplicaSets die after each of their
// writes.
func TestSurvivesCrashes(t *testing.T) {
	for name, strategy := range map[string]func(*appsv1.Deployment){"rolling": rolling("1", "1"), "recreate": recreate} {
		t.Run(name, func(t *testing.T) {
			ours.Survives(t, func(t *testing.T, s *apitest.Server, note func(string)) {
				create(t, s, web(3, strategy))
				note("created")
				change(t, s, image("v2"))
				note("rolled")
				change(t, s, scale(1), image("v1"))
				note("undone and scaled")
			})
		})
	}
}
