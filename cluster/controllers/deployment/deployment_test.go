package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
	upstream "k8s.io/kubernetes/pkg/controller"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"

	"github.com/coracle-project/coracle/cluster/controllers/deployment"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/replicaset"
)

var ours = append(apitest.Ours(deployment.New).As("deployment-controller"), apitest.Ours(replicaset.New).As("replicaset-controller")...)

// web is a Deployment with the API's defaults.
func web(replicas int32, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	quarter, history, deadline := intstr.FromString("25%"), int32(10), int32(600)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: apitest.Namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v1"}}},
			},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter},
			},
			RevisionHistoryLimit:    &history,
			ProgressDeadlineSeconds: &deadline,
		},
	}
	for _, f := range change {
		f(d)
	}
	return d
}

func rolling(surge, unavailable string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		s, u := intstr.Parse(surge), intstr.Parse(unavailable)
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
	}
}

func recreate(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

func scale(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

func paused(p bool) func(*appsv1.Deployment) { return func(d *appsv1.Deployment) { d.Spec.Paused = p } }

func create(t *testing.T, s *apitest.Server, d *appsv1.Deployment) {
	t.Helper()
	if _, err := s.Kube.AppsV1().Deployments(d.Namespace).Create(context.Background(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func get(t *testing.T, s *apitest.Server) *appsv1.Deployment {
	t.Helper()
	d, err := s.Kube.AppsV1().Deployments(apitest.Namespace).Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func change(t *testing.T, s *apitest.Server, f ...func(*appsv1.Deployment)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d := get(t, s)
		for _, f := range f {
			f(d)
		}
		_, err := s.Kube.AppsV1().Deployments(d.Namespace).Update(context.Background(), d, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

// sets returns the ReplicaSets by their image.
func sets(t *testing.T, s *apitest.Server) map[string]*appsv1.ReplicaSet {
	t.Helper()
	list, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byImage := map[string]*appsv1.ReplicaSet{}
	for i := range list.Items {
		byImage[list.Items[i].Spec.Template.Spec.Containers[0].Image] = &list.Items[i]
	}
	return byImage
}

func sizes(t *testing.T, s *apitest.Server) map[string]int32 {
	t.Helper()
	sizes := map[string]int32{}
	for image, rs := range sets(t, s) {
		sizes[image] = *rs.Spec.Replicas
	}
	return sizes
}

// progressing returns reason and status of the condition Progressing.
func progressing(d *appsv1.Deployment) string {
	c := util.GetDeploymentCondition(d.Status, appsv1.DeploymentProgressing)
	if c == nil {
		return ""
	}
	return c.Reason + " " + string(c.Status)
}

func TestCreatesItsReplicaSet(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(20))
		d, rs := get(t, s), sets(t, s)["v1"]
		hash := upstream.ComputeHash(&d.Spec.Template, nil)
		if rs.Name != "web-"+hash || rs.Labels["pod-template-hash"] != hash ||
			rs.Spec.Selector.MatchLabels["pod-template-hash"] != hash || rs.Spec.Template.Labels["pod-template-hash"] != hash {
			t.Errorf("ReplicaSet = %+v, want hash %s", rs, hash)
		}
		want := map[string]string{util.RevisionAnnotation: "1", util.DesiredReplicasAnnotation: "20", util.MaxReplicasAnnotation: "25"}
		if !maps.Equal(rs.Annotations, want) || d.Annotations[util.RevisionAnnotation] != "1" {
			t.Errorf("annotations = %v, %v", rs.Annotations, d.Annotations)
		}
		writes := s.Writes()
		if writes["create replicasets"] != 1 || writes["create pods"] != 20 || writes["update replicasets"] != 0 ||
			writes["update replicasets/status"] != 1 || writes["update deployments/status"] > 2 {
			t.Errorf("writes = %v", writes)
		}
		if p := progressing(d); p != "ReplicaSetUpdated True" {
			t.Errorf("Progressing = %s", p)
		}
		s.Converge(t, nil)
		if p := progressing(get(t, s)); p != "NewReplicaSetAvailable True" {
			t.Errorf("Progressing = %s", p)
		}
		if e := s.Events(t); !slices.Contains(e, fmt.Sprintf("Normal ScalingReplicaSet Scaled up replica set %s from 0 to 20", rs.Name)) {
			t.Errorf("events = %q", e)
		}
		s.Writes()
		s.Pass(time.Hour)
		if w := s.Writes(); len(w) > 0 {
			t.Errorf("idle, but wrote %v", w)
		}
	})
}

// TestRollsWithinItsLimits checks after every move of a kubelet that there are never more pods than
// surge allows, nor fewer available ones than unavailability does.
func TestRollsWithinItsLimits(t *testing.T) {
	for _, c := range []struct {
		replicas           int32
		surge, unavailable string
		firstNew, firstOld int32 // sizes after the first steps that need no pod to become ready
	}{
		{10, "25%", "25%", 5, 8},
		{10, "3", "2", 5, 8},
		{10, "0", "1", 1, 9},
		{10, "1", "0", 1, 10},
		{10, "100%", "0", 10, 10},
		{10, "0", "100%", 10, 0},
		{4, "0%", "0%", 1, 3}, // both round to nothing: one may be unavailable
		{1, "25%", "25%", 1, 1},
		{3, "1", "3", 3, 0},
	} {
		t.Run(fmt.Sprintf("%d pods, surge %s, unavailable %s", c.replicas, c.surge, c.unavailable), func(t *testing.T) {
			ours.Run(t, func(t *testing.T, s *apitest.Server) {
				create(t, s, web(c.replicas, rolling(c.surge, c.unavailable)))
				s.Converge(t, nil)
				d := get(t, s)
				most, least := c.replicas+util.MaxSurge(*d), c.replicas-util.MaxUnavailable(*d)
				change(t, s, image("v2"))
				if got := sizes(t, s); got["v2"] != c.firstNew || got["v1"] != c.firstOld {
					t.Errorf("first steps lead to %v, want v1:%d v2:%d", got, c.firstOld, c.firstNew)
				}
				s.Converge(t, func() {
					total, available := int32(0), int32(0)
					for _, rs := range sets(t, s) {
						total += *rs.Spec.Replicas
						available += rs.Status.AvailableReplicas
					}
					if total > most || available < least {
						t.Errorf("%d pods wanted (at most %d), %d available (at least %d)", total, most, available, least)
					}
				})
				if got := sizes(t, s); got["v2"] != c.replicas || got["v1"] != 0 {
					t.Errorf("ends with %v", got)
				}
				if p := progressing(get(t, s)); p != "NewReplicaSetAvailable True" {
					t.Errorf("Progressing = %s", p)
				}
			})
		})
	}
}

func TestUnavailableOldPodsGoFirst(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(10, rolling("3", "2")))
		s.Converge(t, nil)
		for i, pod := range s.Pods(t) {
			if i < 5 {
				s.SetPod(t, pod, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
			}
		}
		s.Settle()
		change(t, s, image("v2"))
		// Only five are available where eight have to be, so none of them may go. But with three
		// new ones on their way there are 13, two more than are needed: two broken ones make room.
		if got := sizes(t, s); got["v1"] != 8 || got["v2"] != 5 {
			t.Errorf("sizes = %v, want v1:8 v2:5", got)
		}
		for i, pod := range s.Pods(t) {
			if pod.DeletionTimestamp != nil && pod.Status.Conditions[0].Status == corev1.ConditionTrue {
				t.Errorf("pod %d was available and is deleted", i)
			}
		}
	})
}

func TestRecreateNeverMixesRevisions(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(3, recreate))
		s.Converge(t, nil)
		change(t, s, image("v2"))
		if got := sizes(t, s); len(got) != 1 || got["v1"] != 0 {
			t.Errorf("sizes = %v, want none of v2 while pods of v1 stop", got)
		}
		pods := s.Pods(t)
		s.Leave(t, pods[0])
		s.Leave(t, pods[1])
		s.Settle()
		if got := sizes(t, s); len(got) != 1 {
			t.Errorf("sizes = %v with one old pod left", got)
		}
		s.Leave(t, pods[2])
		s.Settle()
		if got := sizes(t, s); got["v2"] != 3 {
			t.Errorf("sizes = %v after the last old pod left", got)
		}
	})
}

func TestUndoKeepsHistory(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(1))
		for _, v := range []string{"v2", "v3", "v1", "v2", "v1"} {
			s.Converge(t, nil)
			change(t, s, image(v))
		}
		s.Converge(t, nil)
		rs := sets(t, s)
		for image, want := range map[string][2]string{"v1": {"6", "1,4"}, "v2": {"5", "2"}, "v3": {"3", ""}} {
			a := rs[image].Annotations
			if a[util.RevisionAnnotation] != want[0] || a[util.RevisionHistoryAnnotation] != want[1] {
				t.Errorf("%s: annotations %v, want revision and history %v", image, a, want)
			}
		}
		if got := get(t, s).Annotations[util.RevisionAnnotation]; got != "6" {
			t.Errorf("Deployment's revision = %s", got)
		}
	})
}

func TestPrunesHistory(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		limit := int32(2)
		create(t, s, web(1, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = &limit }))
		for i := range 5 {
			s.Converge(t, nil)
			change(t, s, image(fmt.Sprintf("v%d", i+2)))
		}
		s.Converge(t, nil)
		got := slices.Sorted(maps.Keys(sets(t, s)))
		if want := []string{"v4", "v5", "v6"}; !slices.Equal(got, want) {
			t.Errorf("ReplicaSets = %v, want %v", got, want)
		}
	})
}

func TestProgressDeadline(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(2))
		s.Pass(400 * time.Second)
		s.Start(t, s.Pods(t)[0]) // some progress: the deadline counts from here
		s.Pass(590 * time.Second)
		if p := progressing(get(t, s)); p != "ReplicaSetUpdated True" {
			t.Errorf("before the deadline: Progressing = %s", p)
		}
		s.Pass(15 * time.Second)
		if p := progressing(get(t, s)); p != "ProgressDeadlineExceeded False" {
			t.Errorf("after the deadline: Progressing = %s", p)
		}
		s.Writes()
		s.Pass(time.Hour)
		if w := s.Writes(); len(w) > 0 {
			t.Errorf("writes %v after the deadline", w)
		}
		s.Converge(t, nil) // late, but it gets there
		if p := progressing(get(t, s)); p != "NewReplicaSetAvailable True" {
			t.Errorf("in the end: Progressing = %s", p)
		}
	})
}

func TestPauseStopsTheClock(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, web(2))
		change(t, s, paused(true))
		s.Pass(time.Hour)
		if p := progressing(get(t, s)); p != "DeploymentPaused Unknown" {
			t.Errorf("paused: Progressing = %s", p)
		}
		change(t, s, paused(false))
		s.Pass(590 * time.Second)
		if p := progressing(get(t, s)); p != "DeploymentResumed Unknown" {
			t.Errorf("resumed: Progressing = %s", p)
		}
		s.Pass(15 * time.Second)
		if p := progressing(get(t, s)); p != "ProgressDeadlineExceeded False" {
			t.Errorf("after the deadline: Progressing = %s", p)
		}
	})
}

func TestCollisionCountsUp(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		d := web(1)
		taken := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: "web-" + upstream.ComputeHash(&d.Spec.Template, nil), Namespace: apitest.Namespace},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}},
		}
		taken.Spec.Template.Spec.Containers = []corev1.Container{{Image: "taken"}}
		if _, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Create(context.Background(), taken, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		create(t, s, d)
		s.Converge(t, nil)
		count := int32(1)
		if rs := sets(t, s)["v1"]; rs == nil || rs.Name != "web-"+upstream.ComputeHash(&d.Spec.Template, &count) {
			t.Errorf("ReplicaSet = %v", rs)
		}
		if got := get(t, s).Status.CollisionCount; got == nil || *got != 1 {
			t.Errorf("collisionCount = %v", got)
		}
	})
}

func TestReportsWhyPodsOrReplicaSetsAreRefused(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		s.Refuse(func(verb, resource string) error {
			if verb == "create" && resource == "replicasets" {
				return errors.New("no room")
			}
			return nil
		})
		create(t, s, web(1))
		d := get(t, s)
		if p := progressing(d); p != "ReplicaSetCreateError False" {
			t.Errorf("Progressing = %s", p)
		}
		if e := s.Events(t); !slices.ContainsFunc(e, func(e string) bool {
			return strings.HasPrefix(e, "Warning ReplicaSetCreateError Failed to create new replica set") && strings.HasSuffix(e, "no room")
		}) {
			t.Errorf("events = %q", e)
		}
		s.Refuse(func(verb, resource string) error {
			if verb == "create" && resource == "pods" {
				return errors.New("exceeded quota")
			}
			return nil
		})
		s.Pass(time.Minute)
		c := util.GetDeploymentCondition(get(t, s).Status, appsv1.DeploymentReplicaFailure)
		if c == nil || c.Reason != "FailedCreate" || c.Message != "exceeded quota" {
			t.Errorf("ReplicaFailure = %+v", c)
		}
		s.Refuse(nil)
		s.Pass(time.Minute)
		if c := util.GetDeploymentCondition(get(t, s).Status, appsv1.DeploymentReplicaFailure); c != nil {
			t.Errorf("ReplicaFailure stays: %+v", c)
		}
	})
}
