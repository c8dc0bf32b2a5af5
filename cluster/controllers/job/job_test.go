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
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/controllers/job"
)

var ours = apitest.WithSecond("ttl-after-finished-controller", job.New).As("job-controller")

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

func onExit(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator,
	codes ...int32,
) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{
		Action:      action,
		OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: codes},
	}
}

func onCondition(action batchv1.PodFailurePolicyAction, c corev1.PodConditionType) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{
		Action:          action,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: c, Status: corev1.ConditionTrue}},
	}
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
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		j := get(t, s)
		for _, f := range changes {
			f(j)
		}
		_, err := s.Kube.BatchV1().Jobs(j.Namespace).Update(context.Background(), j, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
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

func TestWritesNoMoreThanItMust(t *testing.T) {
	ours.Run(t, func(t *testing.T, s *apitest.Server) {
		create(t, s, work(20, 20))
		if got, want := s.Writes(), (map[string]int{"create pods": 20, "update jobs/status": 1}); !maps.Equal(got, want) {
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
				s.Refuse(func(verb, resource string) error {
					if n++; verb+" "+resource == broken && n%3 != 0 {
						return errors.New("unavailable")
					}
					return nil
				})
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
				s.Refuse(nil)
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

// TestSurvivesCrashes lets the controller die after each of its writes: each pod counts once.
func TestSurvivesCrashes(t *testing.T) {
	for name, mode := range map[string]change{"plain": func(*batchv1.Job) {}, "indexed": indexed} {
		t.Run(name, func(t *testing.T) {
			ours.Survives(t, func(t *testing.T, s *apitest.Server, note func(string)) {
				create(t, s, work(2, 3, mode))
				note("created")
				end(t, s, 1, 0)
				note("one succeeded")
				end(t, s, 0, 1)
				s.Pass(time.Minute)
				note("one failed and was replaced")
				end(t, s, 0, 0)
				end(t, s, 0, 0)
				note("done")
			})
			ours.Survives(t, func(t *testing.T, s *apitest.Server, note func(string)) {
				create(t, s, work(3, 5, mode, backoffLimit(0)))
				note("created")
				end(t, s, 0, 0)
				end(t, s, 0, 1)
				note("failed")
			})
		})
	}
}
