package job_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/job"
)

var (
	ours   = apitest.Ours(job.New)
	oracle = apitest.Controllers{func(set *client.Set) interface{ Run(context.Context) } {
		c, err := upstream.NewController(context.Background(), set.Kube, set.Informers.Core().V1().Pods(), set.Informers.Batch().V1().Jobs(), nil, nil)
		if err != nil {
			panic(err)
		}
		return apitest.Upstream(func(ctx context.Context) { c.Run(ctx, 5) })
	}}
)

type change = func(*batchv1.Job)

// work is a Job with the API's defaults.
func work(parallelism, completions int32, changes ...change) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work", Namespace: apitest.Namespace, Labels: map[string]string{"app": "work"}},
		Spec: batchv1.JobSpec{
			Parallelism: &parallelism, Completions: &completions, BackoffLimit: ptr.To(int32(6)),
			CompletionMode:       ptr.To(batchv1.NonIndexedCompletion),
			PodReplacementPolicy: ptr.To(batchv1.TerminatingOrFailed),
			Suspend:              ptr.To(false),
			Selector:             &metav1.LabelSelector{MatchLabels: map[string]string{"app": "work"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "work"}},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	for _, f := range changes {
		f(j)
	}
	return j
}

func indexed(j *batchv1.Job) { j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion) }

func backoffLimit(n int32) change { return func(j *batchv1.Job) { j.Spec.BackoffLimit = &n } }

func perIndex(n int32) change {
	return func(j *batchv1.Job) {
		indexed(j)
		j.Spec.BackoffLimitPerIndex, j.Spec.BackoffLimit = &n, ptr.To(int32(1<<31-1))
	}
}

func suspend(s bool) change { return func(j *batchv1.Job) { j.Spec.Suspend = &s } }

func failurePolicy(rules ...batchv1.PodFailurePolicyRule) change {
	return func(j *batchv1.Job) {
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules}
		j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
	}
}

func onExit(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, codes ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: codes}}
}

func onCondition(action batchv1.PodFailurePolicyAction, c corev1.PodConditionType) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: c, Status: corev1.ConditionTrue}}}
}

func successPolicy(rules ...batchv1.SuccessPolicyRule) change {
	return func(j *batchv1.Job) {
		indexed(j)
		j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules}
	}
}

func create(t *testing.T, s *apitest.Server, j *batchv1.Job) {
	t.Helper()
	if _, err := s.Kube.BatchV1().Jobs(j.Namespace).Create(context.Background(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

func get(t *testing.T, s *apitest.Server) *batchv1.Job {
	t.Helper()
	j, err := s.Kube.BatchV1().Jobs(apitest.Namespace).Get(context.Background(), "work", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func update(t *testing.T, s *apitest.Server, changes ...change) {
	t.Helper()
	j := get(t, s)
	for _, f := range changes {
		f(j)
	}
	if _, err := s.Kube.BatchV1().Jobs(j.Namespace).Update(context.Background(), j, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Settle()
}

// live returns the pods that neither finished nor are being deleted, by index and name.
func live(t *testing.T, s *apitest.Server) []*corev1.Pod {
	t.Helper()
	pods := slices.DeleteFunc(s.Pods(t), func(p *corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	index := func(p *corev1.Pod) string { return p.Annotations[batchv1.JobCompletionIndexAnnotation] }
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(index(a), index(b)), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// end ends the i-th live pod.
func end(t *testing.T, s *apitest.Server, i int, code int32) {
	t.Helper()
	pods := live(t, s)
	if len(pods) <= i {
		t.Fatalf("no live pod %d, %d are", i, len(pods))
	}
	s.End(t, pods[i], code)
}

func conditions(j *batchv1.Job) []string {
	var texts []string
	for _, c := range j.Status.Conditions {
		texts = append(texts, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	slices.Sort(texts)
	return texts
}

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
			orphan := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: map[string]string{"app": "work"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
			if _, err := s.Kube.CoreV1().Pods(apitest.Namespace).Create(context.Background(), orphan, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
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

func TestWritesNoMoreThanItMust(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, work(20, 20))
		if got, want := s.Writes(), (map[string]int{"create jobs": 1, "create pods": 20, "update jobs/status": 1}); !maps.Equal(got, want) {
			t.Errorf("start: writes = %v, want %v", got, want)
		}
		for range 20 {
			end(t, s, 0, 0) // all within one batch period
		}
		s.Settle()
		// Listed, then counted and complete.
		if got, want := s.Writes(), (map[string]int{"patch pods": 20, "update jobs/status": 2}); !maps.Equal(got, want) {
			t.Errorf("end: writes = %v, want %v", got, want)
		}
		s.Pass(time.Hour)
		if got := s.Writes(); len(got) > 0 {
			t.Errorf("idle, but wrote %v", got)
		}
	})
}

// TestCountsEachPodOnceWhateverFails ends pods while writes fail at random, and restarts the
// controller in between.
func TestCountsEachPodOnceWhateverFails(t *testing.T) {
	for _, mode := range []change{func(*batchv1.Job) {}, indexed} {
		for _, broken := range []string{"patch pods", "update jobs/status"} {
			ours.Run(t, func(t *testing.T, s *apitest.Server) {
				create(t, s, work(6, 6, mode))
				n := 0
				s.Refuse = func(verb, resource string, _ runtime.Object) error {
					if n++; verb+" "+resource == broken && n%3 != 0 {
						return errors.New("unavailable")
					}
					return nil
				}
				for i := range 6 {
					code := int32(0)
					if i == 2 {
						code = 1
					}
					end(t, s, 0, code)
					s.Pass(time.Second)
				}
				s.Pass(time.Minute)
				end(t, s, 0, 0) // the failed one's replacement
				s.Pass(time.Minute)
				s.Refuse = nil
				s.Pass(20 * time.Minute)
				status := get(t, s).Status
				if status.Succeeded != 6 || status.Failed != 1 || status.CompletionTime == nil || len(status.UncountedTerminatedPods.Failed) > 0 {
					t.Errorf("%s failing: status = %+v", broken, status)
				}
				for _, pod := range s.Pods(t) {
					if len(pod.Finalizers) > 0 {
						t.Errorf("pod %s keeps its finalizer", pod.Name)
					}
				}
			})
		}
	}
}

func TestReplacesFailedPodsAfterABackoff(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, work(1, 1))
		for _, wait := range []time.Duration{10, 20, 40, 80} {
			end(t, s, 0, 1)
			s.Pass(wait*time.Second - time.Second)
			if n := len(live(t, s)); n != 0 {
				t.Errorf("replaced before %d s", wait)
			}
			s.Pass(time.Second + 100*time.Millisecond)
			if n := len(live(t, s)); n != 1 {
				t.Errorf("not replaced after %d s", wait)
			}
		}
	})
}

func TestTimeToLive(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, work(1, 1, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To(int32(60)) }))
		s.Pass(time.Hour)
		end(t, s, 0, 0)
		s.Pass(50 * time.Second)
		if got, want := conditions(get(t, s)), []string{
			"Complete=True CompletionsReached: Reached expected number of succeeded pods",
			"SuccessCriteriaMet=True CompletionsReached: Reached expected number of succeeded pods",
		}; !slices.Equal(got, want) {
			t.Errorf("conditions = %q", got)
		}
		update(t, s, func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To(int32(600)) })
		s.Pass(500 * time.Second)
		get(t, s) // prolonged: it is still there
		s.Pass(60 * time.Second)
		jobs, err := s.Kube.BatchV1().Jobs(apitest.Namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil || len(jobs.Items) != 0 {
			t.Errorf("jobs = %v (%v), want none", jobs.Items, err)
		}
	})
}

func TestRemovesPodsWithWrongIndexes(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, work(3, 3, indexed))
		s.Converge(t, nil)
		for i, index := range []string{"1", "7", ""} { // doubled, out of range, none
			twin := live(t, s)[0].DeepCopy()
			twin.Name, twin.UID, twin.ResourceVersion = fmt.Sprint("twin-", i), "", ""
			twin.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: index}
			if _, err := s.Kube.CoreV1().Pods(apitest.Namespace).Create(context.Background(), twin, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.Converge(t, nil)
		var indexes []string
		for _, pod := range live(t, s) {
			indexes = append(indexes, pod.Annotations[batchv1.JobCompletionIndexAnnotation])
		}
		if !slices.Equal(indexes, []string{"0", "1", "2"}) {
			t.Errorf("indexes = %v", indexes)
		}
		if failed := get(t, s).Status.Failed; failed != 0 {
			t.Errorf("%d failed, want removed pods not to count", failed)
		}
	})
}
