package replicaset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Only a status that says no more than that some more pods are ready may wait.
func TestStatusesThatWait(t *testing.T) {
	wanted, one, none := int32(5), int32(1), int32(0)
	was := appsv1.ReplicaSetStatus{Replicas: 5, FullyLabeledReplicas: 5, ReadyReplicas: 1, AvailableReplicas: 1, TerminatingReplicas: &one}
	for name, test := range map[string]struct {
		change func(*appsv1.ReplicaSetStatus)
		wait   bool
	}{
		"one more ready":        {func(*appsv1.ReplicaSetStatus) {}, true},
		"all ready":             {func(s *appsv1.ReplicaSetStatus) { s.ReadyReplicas = 5 }, false},
		"fewer available":       {func(s *appsv1.ReplicaSetStatus) { s.AvailableReplicas = 0 }, false},
		"one pod more":          {func(s *appsv1.ReplicaSetStatus) { s.Replicas = 6 }, false},
		"fewer with the labels": {func(s *appsv1.ReplicaSetStatus) { s.FullyLabeledReplicas = 4 }, false},
		"a pod has terminated":  {func(s *appsv1.ReplicaSetStatus) { s.TerminatingReplicas = &none }, false},
		"a new generation":      {func(s *appsv1.ReplicaSetStatus) { s.ObservedGeneration = 1 }, false},
		"a failure": {func(s *appsv1.ReplicaSetStatus) {
			s.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue}}
		}, false},
	} {
		status := was
		status.ReadyReplicas, status.AvailableReplicas = 2, 2
		test.change(&status)
		rs := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &wanted}, Status: was}
		if got := growing(rs, &status); got != test.wait {
			t.Errorf("%s: waits %v, want %v", name, got, test.wait)
		}
	}
}
