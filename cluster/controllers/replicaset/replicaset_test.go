package replicaset_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/replicaset"
)

func run(t *testing.T, f func(t *testing.T, s *apitest.Server)) {
	t.Helper()
	apitest.Ours(replicaset.New).As("replicaset-controller").Run(t, f)
}

// set is a ReplicaSet named web.
func set(replicas int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: apitest.Namespace},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "tier": "front"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

func create(t *testing.T, s *apitest.Server, rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	t.Helper()
	made, err := s.Kube.AppsV1().ReplicaSets(rs.Namespace).Create(context.Background(), rs, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Settle()
	return made
}

func get(t *testing.T, s *apitest.Server) *appsv1.ReplicaSet {
	t.Helper()
	rs, err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func resize(t *testing.T, s *apitest.Server, replicas int32) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		rs := get(t, s)
		rs.Spec.Replicas = &replicas
		_, err := s.Kube.AppsV1().ReplicaSets(rs.Namespace).Update(context.Background(), rs, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func wantStatus(t *testing.T, got appsv1.ReplicaSetStatus, replicas, ready, available, terminating int32) {
	t.Helper()
	if got.Replicas != replicas || got.ReadyReplicas != ready || got.AvailableReplicas != available ||
		got.TerminatingReplicas == nil || *got.TerminatingReplicas != terminating {
		t.Errorf("status = %+v, want %d replicas, %d ready, %d available, %d terminating", got, replicas, ready, available, terminating)
	}
}

func TestCreatesEachPodOnceAndWritesStatusOnce(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		rs := create(t, s, set(20))
		if got, want := s.Writes(), map[string]int{"create pods": 20, "update replicasets/status": 1}; !maps.Equal(got, want) {
			t.Errorf("writes = %v, want %v", got, want)
		}
		for _, pod := range s.Pods(t) {
			if !metav1.IsControlledBy(pod, rs) || !strings.HasPrefix(pod.Name, "web-") || pod.Labels["tier"] != "front" {
				t.Errorf("pod %s: owner %v, labels %v", pod.Name, pod.OwnerReferences, pod.Labels)
			}
		}
		status := get(t, s).Status
		wantStatus(t, status, 20, 0, 0, 0)
		if status.FullyLabeledReplicas != 20 || status.ObservedGeneration != 1 {
			t.Errorf("status = %+v", status)
		}
	})
}

// Pods that become ready together cost few writes, but that the last one is ready is written at
// once, and so is that one is not ready any more.
func TestReadyPodsAreCountedAtAPace(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, set(20))
		s.Writes()
		pods := s.Pods(t)
		writes := func() int { return s.Writes()["update replicasets/status"] }
		for _, pod := range pods[:19] {
			s.Start(t, pod)
			s.Pass(10 * time.Millisecond)
		}
		if n := writes(); n < 2 || n > 3 {
			t.Errorf("%d writes in 190 ms", n)
		}
		s.Pass(80 * time.Millisecond)
		wantStatus(t, get(t, s).Status, 20, 19, 19, 0)
		writes()
		s.Start(t, pods[19])
		s.Pass(time.Millisecond)
		wantStatus(t, get(t, s).Status, 20, 20, 20, 0)
		s.SetPod(t, pods[0], func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
		})
		s.Pass(time.Millisecond)
		wantStatus(t, get(t, s).Status, 20, 19, 19, 0)
		if n := writes(); n != 2 {
			t.Errorf("%d writes for the last pod and one that is not ready any more", n)
		}
	})
}

func TestIdleWritesNothing(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, set(3))
		s.Converge(t, nil)
		if !slices.Contains(s.Events(t), "Normal SuccessfulCreate Created pod: "+s.Pods(t)[0].Name) {
			t.Errorf("events = %q", s.Events(t))
		}
		s.Writes()
		s.SetPod(t, s.Pods(t)[0], func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} })
		s.Pass(time.Hour)
		if got := s.Writes(); len(got) > 0 {
			t.Errorf("writes = %v", got)
		}
	})
}

func TestReplacesWhatFailsLeavesOrIsDeleted(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, set(3))
		s.Converge(t, nil)
		pods := s.Pods(t)
		s.End(t, pods[0], 1)
		s.SetPod(t, pods[1], func(p *corev1.Pod) { p.Labels["app"] = "other" })
		if err := s.Kube.CoreV1().Pods(apitest.Namespace).Delete(context.Background(), pods[2].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		if got := len(s.Pods(t)); got != 6 {
			t.Errorf("%d pods, want 3 old and 3 new", got)
		}
		wantStatus(t, get(t, s).Status, 3, 0, 0, 1)
		released, err := s.Kube.CoreV1().Pods(apitest.Namespace).Get(context.Background(), pods[1].Name, metav1.GetOptions{})
		if err != nil || len(released.OwnerReferences) != 0 {
			t.Errorf("released pod has owners %v (%v)", released.OwnerReferences, err)
		}
	})
}

func TestAdoptsOrphansUnlessOnItsWayOut(t *testing.T) {
	orphan := func(s *apitest.Server, t *testing.T) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "orphan", Namespace: apitest.Namespace, Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
		}
		if _, err := s.Kube.CoreV1().Pods(apitest.Namespace).Create(context.Background(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
	}
	run(t, func(t *testing.T, s *apitest.Server) {
		orphan(s, t)
		rs := create(t, s, set(2))
		pods := s.Pods(t)
		if len(pods) != 2 || !metav1.IsControlledBy(pods[0], rs) {
			t.Errorf("pods = %v, want the orphan adopted and one more", pods)
		}
		status := get(t, s).Status
		if status.Replicas != 2 || status.FullyLabeledReplicas != 1 { // the orphan lacks a label
			t.Errorf("status = %+v", status)
		}
	})
	run(t, func(t *testing.T, s *apitest.Server) {
		rs := set(1)
		rs.Finalizers = []string{"orphan"}
		create(t, s, rs)
		if err := s.Kube.AppsV1().ReplicaSets(rs.Namespace).Delete(context.Background(), rs.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		orphan(s, t)
		if pods := s.Pods(t); len(pods) != 2 || len(pods[0].OwnerReferences) != 0 {
			t.Errorf("pods = %v, want the orphan left alone", pods)
		}
	})
}

func TestReportsAndRetriesFailedCreates(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		made := 0 // the quota is for five pods
		s.Refuse(func(verb, resource string) error {
			if verb == "create" && resource == "pods" {
				if made++; made > 5 {
					return errors.New("exceeded quota")
				}
			}
			return nil
		})
		rs := set(20)
		if _, err := s.Kube.AppsV1().ReplicaSets(rs.Namespace).Create(context.Background(), rs, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Pass(time.Millisecond)
		if got := len(s.Pods(t)); got != 5 {
			t.Errorf("%d pods made", got)
		}
		cond := get(t, s).Status.Conditions
		if len(cond) != 1 || cond[0].Type != appsv1.ReplicaSetReplicaFailure || cond[0].Reason != "FailedCreate" ||
			cond[0].Message != "exceeded quota" {
			t.Errorf("conditions = %+v", cond)
		}
		s.Refuse(nil)
		s.Pass(10 * time.Second) // the back-off
		status := get(t, s).Status
		wantStatus(t, status, 20, 0, 0, 0)
		if len(status.Conditions) != 0 {
			t.Errorf("conditions = %+v, want none any more", status.Conditions)
		}
	})
}

func TestAvailableOnlyAfterMinReadySeconds(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		rs := set(2)
		rs.Spec.MinReadySeconds = 30
		create(t, s, rs)
		pods := s.Pods(t)
		s.Start(t, pods[0])
		s.Pass(10 * time.Second)
		s.Start(t, pods[1])
		s.Settle()
		wantStatus(t, get(t, s).Status, 2, 2, 0, 0)
		s.Pass(20 * time.Second)
		wantStatus(t, get(t, s).Status, 2, 2, 1, 0)
		s.Pass(10 * time.Second)
		wantStatus(t, get(t, s).Status, 2, 2, 2, 0)
	})
}

func TestDeletesThoseMissedLeast(t *testing.T) {
	for name, c := range map[string]struct {
		change func(i int, p *corev1.Pod) // pods 0 to 3 run and are ready
		victim int
	}{
		"not scheduled": {func(i int, p *corev1.Pod) {
			if i == 2 {
				p.Spec.NodeName = ""
			}
		}, 2},
		"not ready": {func(i int, p *corev1.Pod) {
			if i == 1 {
				p.Status.Conditions[0].Status = corev1.ConditionFalse
			}
		}, 1},
		"deletion cost": {func(i int, p *corev1.Pod) {
			if i == 3 {
				p.Annotations = map[string]string{corev1.PodDeletionCost: "-1"}
			}
		}, 3},
		"on a crowded node": {func(i int, p *corev1.Pod) {
			p.Spec.NodeName = []string{"a", "b", "c", "c"}[i]
			if i == 3 {
				p.Annotations = map[string]string{corev1.PodDeletionCost: "1"}
			}
		}, 2},
		"restarted more": {func(i int, p *corev1.Pod) {
			if i == 0 {
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}}
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, s *apitest.Server) {
				rs := set(4)
				yes := true
				rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "d", Controller: &yes}}
				create(t, s, rs)
				pods := s.Pods(t)
				for i, pod := range pods {
					s.SetPod(t, pod, func(p *corev1.Pod) {
						p.Spec.NodeName = string(rune('a' + i))
						p.Status.Phase = corev1.PodRunning
						p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
						c.change(i, p)
					})
				}
				s.Settle()
				resize(t, s, 3)
				for i, pod := range pods {
					now, err := s.Kube.CoreV1().Pods(apitest.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
					if gone := err != nil || now.DeletionTimestamp != nil; gone != (i == c.victim) {
						t.Errorf("pod %d deleted: %v", i, gone)
					}
				}
				if !slices.Contains(s.Events(t), "Normal SuccessfulDelete Deleted pod: "+pods[c.victim].Name) {
					t.Errorf("events = %q", s.Events(t))
				}
			})
		})
	}
}

func TestForgetsTheDeleted(t *testing.T) {
	run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, set(1))
		if err := s.Kube.AppsV1().ReplicaSets(apitest.Namespace).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		create(t, s, set(2)) // another of the same name does not touch the first one's pod
		if got := len(s.Pods(t)); got != 3 {
			t.Errorf("%d pods, want 3", got)
		}
		wantStatus(t, get(t, s).Status, 2, 0, 0, 0)
	})
}
