package job

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// ended are pods whose containers ended so many seconds after start.
func ended(seconds ...int) (pods []*corev1.Pod) {
	for _, s := range seconds {
		pods = append(pods, &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at(s))}}},
		}}})
	}
	return pods
}

func TestBackoff(t *testing.T) {
	for name, c := range map[string]struct {
		had               backoff
		succeeded, failed []*corev1.Pod
		failures          int32
		left              time.Duration // 100 s after start
	}{
		"nothing":                 {},
		"first failure":           {failed: ended(95), failures: 1, left: 5 * time.Second},
		"long ago":                {failed: ended(5), failures: 1, left: 0},
		"second failure":          {had: backoff{1, at(60)}, failed: ended(90), failures: 2, left: 10 * time.Second},
		"three at once":           {failed: ended(80, 90, 70), failures: 3, left: 30 * time.Second},
		"capped":                  {had: backoff{20, at(0)}, failed: ended(100), failures: 21, left: 10 * time.Minute},
		"kept while nothing ends": {had: backoff{2, at(90)}, failures: 2, left: 10 * time.Second},
		"a success forgives":      {had: backoff{5, at(90)}, succeeded: ended(95), failures: 0},
		"a success forgives only before": {
			had: backoff{5, at(40)}, succeeded: ended(85), failed: ended(80, 90, 95), failures: 2,
			left: 15 * time.Second,
		},
		"the latest success forgives": {succeeded: ended(10, 97), failed: ended(80, 90, 95), failures: 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackoffs()
			b.remember("k", c.had)
			got := b.with("k", c.succeeded, c.failed)
			if got.failures != c.failures || got.left(at(100)) != c.left {
				t.Errorf("%+v, left %v; want %d failures, left %v", got, got.left(at(100)), c.failures, c.left)
			}
			if b.byKey["k"] != c.had {
				t.Error("remembered before it was written")
			}
		})
	}
}

func TestFinishTime(t *testing.T) {
	created := metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at(1))}
	deletedAt, grace := metav1.NewTime(at(70)), int64(30)
	terminated := func(name string, s int) corev1.ContainerStatus {
		c := ended(s)[0].Status.ContainerStatuses[0]
		c.Name = name
		return c
	}
	always := corev1.ContainerRestartPolicyAlways
	notReady := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(at(50))}}
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want int
	}{
		"last container": {corev1.Pod{ObjectMeta: created, Status: corev1.PodStatus{
			Conditions: notReady, ContainerStatuses: []corev1.ContainerStatus{terminated("a", 10), terminated("b", 20)},
		}}, 20},
		"sidecar outlives it": {corev1.Pod{
			ObjectMeta: created,
			Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "s", RestartPolicy: &always}, {Name: "i"}}},
			Status: corev1.PodStatus{
				ContainerStatuses:     []corev1.ContainerStatus{terminated("a", 10)},
				InitContainerStatuses: []corev1.ContainerStatus{terminated("i", 99), terminated("s", 25)},
			},
		}, 25},
		"one still runs": {corev1.Pod{ObjectMeta: created, Status: corev1.PodStatus{
			Conditions: notReady, ContainerStatuses: []corev1.ContainerStatus{terminated("a", 10), {}},
		}}, 50},
		"no containers": {corev1.Pod{ObjectMeta: created, Status: corev1.PodStatus{Conditions: notReady}}, 50},
		"deleted": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			CreationTimestamp: created.CreationTimestamp,
			DeletionTimestamp: &deletedAt, DeletionGracePeriodSeconds: &grace,
		}}, 40},
		"nothing known": {corev1.Pod{ObjectMeta: created}, 1},
	} {
		if got := finishTime(&c.pod); !got.Equal(at(c.want)) {
			t.Errorf("%s: %v, want %v", name, got, at(c.want))
		}
	}
}
