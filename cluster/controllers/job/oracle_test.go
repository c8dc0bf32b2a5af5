package job_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

// oracle is upstream's Job controller.
var oracle = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
	c, err := upstream.NewController(context.Background(), set.Kube, set.Informers.Core().V1().Pods(), set.Informers.Batch().V1().Jobs(), nil,
		nil)
	if err != nil {
		panic(err)
	}
	return apitest.Upstream(func(ctx context.Context) { c.Run(ctx, 5) })
}}

func TestSameAsUpstream(t *testing.T) {
	const (
		in    = batchv1.PodFailurePolicyOnExitCodesOpIn
		notIn = batchv1.PodFailurePolicyOnExitCodesOpNotIn
	)
	deletePod := func(t *testing.T, s *apitest.Server, i int) {
		if err := s.Kube.CoreV1().Pods(apitest.Namespace).Delete(context.Background(), live(t, s)[i].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// outlast waits until any back-off is over.
	outlast := func(s *apitest.Server) { s.Pass(11 * time.Minute) }

	for name, scenario := range map[string]apitest.Scenario{
		"completes": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 3))
			note("created")
			for i := range 3 {
				end(t, s, 0, 0)
				note(fmt.Sprint(i+1, " succeeded"))
			}
		},
		"fails": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 4, backoffLimit(1)))
			note("created")
			end(t, s, 0, 1)
			note("one failed")
			outlast(s)
			note("replaced")
			end(t, s, 1, 1)
			note("another failed")
		},
		"work queue": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(3, 0, func(j *batchv1.Job) { j.Spec.Completions = nil }))
			note("created")
			end(t, s, 0, 0)
			note("one succeeded")
			end(t, s, 0, 1)
			note("one failed")
			end(t, s, 0, 0)
			note("the last")
		},
		"no parallelism": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(0, 2))
			note("created")
			update(t, s, func(j *batchv1.Job) { *j.Spec.Parallelism = 2 })
			note("more")
			update(t, s, func(j *batchv1.Job) { *j.Spec.Parallelism = 1 })
			note("less")
		},
		"nothing to do": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(1, 0))
			note("created")
		},
		"indexed": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(3, 5, indexed))
			note("created")
			end(t, s, 1, 0)
			note("1 succeeded")
			end(t, s, 0, 1)
			note("0 failed")
			outlast(s)
			note("replaced")
			for i := range 4 {
				end(t, s, 0, 0)
				note(fmt.Sprint("success ", i+2))
			}
		},
		"indexed, scaled down": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(4, 4, indexed))
			note("created")
			end(t, s, 3, 0)
			note("3 succeeded")
			update(t, s, func(j *batchv1.Job) { *j.Spec.Completions, *j.Spec.Parallelism = 2, 2 })
			note("fewer completions")
			end(t, s, 0, 0)
			end(t, s, 0, 0)
			note("done")
		},
		"limit per index": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(3, 3, perIndex(1)))
			note("created")
			end(t, s, 1, 1)
			note("1 failed")
			outlast(s)
			note("1 replaced")
			end(t, s, 1, 1)
			note("1 failed for good")
			end(t, s, 0, 0)
			note("0 succeeded")
			end(t, s, 0, 0)
			note("2 succeeded")
		},
		"too many failed indexes": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(4, 4, perIndex(0), func(j *batchv1.Job) { j.Spec.MaxFailedIndexes = ptr.To(int32(1)) }))
			note("created")
			end(t, s, 0, 1)
			note("first")
			end(t, s, 2, 1)
			note("second")
		},
		"policy: exit codes": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 4, backoffLimit(1), failurePolicy(
				onExit(batchv1.PodFailurePolicyActionIgnore, in, 3),
				onExit(batchv1.PodFailurePolicyActionFailJob, in, 42),
				onExit(batchv1.PodFailurePolicyActionCount, notIn, 0, 9))))
			note("created")
			end(t, s, 0, 3)
			note("ignored")
			outlast(s)
			note("replaced")
			end(t, s, 0, 7)
			note("counted")
			outlast(s)
			note("replaced again")
			end(t, s, 0, 42)
			note("failed")
		},
		"policy: conditions": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(1, 1, backoffLimit(0), failurePolicy(onCondition(batchv1.PodFailurePolicyActionIgnore, corev1.DisruptionTarget))))
			note("created")
			s.SetPod(t, live(t, s)[0], func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodFailed
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
			})
			note("disrupted")
			outlast(s)
			note("replaced")
			end(t, s, 0, 1)
			note("failed")
		},
		"policy: fail index": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2, perIndex(3), failurePolicy(
				onExit(batchv1.PodFailurePolicyActionFailIndex, in, 42), onExit(batchv1.PodFailurePolicyActionIgnore, in, 3))))
			note("created")
			end(t, s, 0, 3)
			note("0 ignored")
			outlast(s)
			note("0 replaced")
			end(t, s, 0, 42)
			note("0 failed for good")
			end(t, s, 0, 0)
			note("1 succeeded")
		},
		"success policy": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(5, 5, successPolicy(
				batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0,4")},
				batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("1-3"), SucceededCount: ptr.To(int32(2))})))
			note("created")
			end(t, s, 4, 0)
			note("4 succeeded")
			end(t, s, 1, 0)
			note("1 succeeded")
			end(t, s, 1, 0)
			note("2 succeeded")
		},
		"success policy by number": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(3, 3, successPolicy(batchv1.SuccessPolicyRule{SucceededCount: ptr.To(int32(1))})))
			note("created")
			end(t, s, 2, 0)
			note("2 succeeded")
		},
		"deadline": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2, func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To(int64(600)) }))
			note("created")
			s.Pass(500 * time.Second)
			note("before")
			s.Pass(100 * time.Second)
			note("after")
		},
		"suspend, resume": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 3, suspend(true), func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To(int64(600)) }))
			note("created suspended")
			s.Pass(time.Hour)
			update(t, s, suspend(false))
			note("resumed")
			end(t, s, 0, 0)
			note("one succeeded")
			update(t, s, suspend(true))
			note("suspended")
			s.Pass(time.Hour)
			update(t, s, suspend(false))
			note("resumed again")
			end(t, s, 0, 0)
			end(t, s, 0, 0)
			note("done")
		},
		"pods are deleted": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2))
			note("created")
			deletePod(t, s, 0)
			note("deleted")
			outlast(s)
			note("replaced")
		},
		"pods are deleted, replaced once they stopped": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2, func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed) }))
			note("created")
			pod := live(t, s)[0]
			deletePod(t, s, 0)
			s.Settle()
			s.End(t, pod, 137)
			note("stopped")
			outlast(s)
			note("replaced")
		},
		"restarts in place": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2, backoffLimit(2), func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure }))
			note("created")
			for i := range 2 {
				s.SetPod(t, live(t, s)[0], func(p *corev1.Pod) {
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: int32(i + 1)}}
				})
				note(fmt.Sprint("restart ", i+1))
			}
		},
		"adopts": func(t *testing.T, s *apitest.Server, note func(string)) {
			orphan := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: map[string]string{"app": "work"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
			}
			if _, err := s.Kube.CoreV1().Pods(apitest.Namespace).Create(context.Background(), orphan, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			s.Settle()
			create(t, s, work(2, 2))
			note("created")
		},
		"deleted while it runs": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2))
			note("created")
			if err := s.Kube.BatchV1().Jobs(apitest.Namespace).Delete(context.Background(), "work", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			note("deleted")
		},
		"orphaned pods": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(1, 1))
			note("created")
			s.SetPod(t, live(t, s)[0], func(p *corev1.Pod) { p.OwnerReferences, p.Labels = nil, nil })
			note("orphaned")
		},
		"managed by another": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(1, 1, func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.com/queue") }))
			note("created")
		},
		"own environment and finalizers": func(t *testing.T, s *apitest.Server, note func(string)) {
			create(t, s, work(2, 2, indexed, func(j *batchv1.Job) {
				j.Spec.Template.Finalizers = []string{"example.com/mine"}
				j.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "i"}}
				j.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "JOB_COMPLETION_INDEX", Value: "own"}}
			}))
			note("created")
		},
	} {
		t.Run(name, func(t *testing.T) { apitest.SameAs(t, ours, oracle, scenario) })
	}
}
