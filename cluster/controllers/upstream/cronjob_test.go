package upstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Nothing here waits for the clock: a schedule whose last time has passed already is due at once.

// cron is a CronJob that is suspended, of Jobs that do not end.
func cron(schedule string, change func(*batchv1.CronJobSpec)) *batchv1.CronJob {
	pod := template()
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "cron"},
		Spec: batchv1.CronJobSpec{
			Schedule: schedule, Suspend: ptr.To(true),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: pod}},
		},
	}
	if change != nil {
		change(&c.Spec)
	}
	return c
}

// daily is the schedule of once a day, at the hour and the minute of a time.
func daily(at time.Time) string { return fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()) }

// createCron makes a CronJob that had its last Job at a time, and resumes it.
func (c *cluster) createCron(ctx context.Context, t *testing.T, ns string, cron *batchv1.CronJob, last time.Time) {
	t.Helper()
	crons := c.kube.BatchV1().CronJobs(ns)
	must[*batchv1.CronJob](t)(crons.Create(ctx, cron, metav1.CreateOptions{}))
	c.patchCron(ctx, t, ns, map[string]any{"status": map[string]any{"lastScheduleTime": last.UTC().Format(time.RFC3339)}}, "status")
	c.patchCron(ctx, t, ns, map[string]any{"spec": map[string]any{"suspend": false}})
}

func (c *cluster) patchCron(ctx context.Context, t *testing.T, ns string, patch map[string]any, sub ...string) {
	t.Helper()
	data := must[[]byte](t)(json.Marshal(patch))
	must[*batchv1.CronJob](t)(c.kube.BatchV1().CronJobs(ns).Patch(ctx, "cron", types.MergePatchType, data, metav1.PatchOptions{}, sub...))
}

// jobs are the Jobs of a namespace by the time that they are of, deleted ones left out.
func (c *cluster) jobs(ctx context.Context, t *testing.T, ns string) []string {
	t.Helper()
	times := []string{}
	for _, job := range must[*batchv1.JobList](t)(c.kube.BatchV1().Jobs(ns).List(ctx, metav1.ListOptions{})).Items {
		if job.DeletionTimestamp == nil {
			times = append(times, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
		}
	}
	slices.Sort(times)
	return times
}

func (c *cluster) awaitJobs(ctx context.Context, t *testing.T, ns string, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(ctx, t, fmt.Sprint("Jobs of ", want), func() (bool, error) {
		found := c.jobs(ctx, t, ns)
		return slices.Equal(found, want), fmt.Errorf("jobs of %q", found)
	})
}

// A schedule is of its time zone.
func TestCronJobTimeZone(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	due := time.Now().Add(-2 * time.Hour).Truncate(time.Minute).In(time.FixedZone("", 5*3600+1800)) // no other time in summer
	c.createCron(ctx, t, ns, cron(daily(due), func(s *batchv1.CronJobSpec) { s.TimeZone = ptr.To("Asia/Kolkata") }), due.Add(-24*time.Hour))
	c.awaitJobs(ctx, t, ns, due.Format(time.RFC3339))
}

// What happens to a Job that still runs when the next one is due is the concurrency policy's to
// say.
func TestCronJobConcurrency(t *testing.T) {
	t.Parallel()
	for policy, want := range map[batchv1.ConcurrencyPolicy]struct {
		jobs   []int // 1 is the first, 2 is the second
		reason string
	}{
		batchv1.AllowConcurrent:   {[]int{1, 2}, "SuccessfulCreate"},
		batchv1.ForbidConcurrent:  {[]int{1}, "JobAlreadyActive"},
		batchv1.ReplaceConcurrent: {[]int{2}, "SuccessfulDelete"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := whole(t)
			ctx, ns := c.namespace(t)
			due := map[int]time.Time{}
			for i := range 2 {
				due[i+1] = time.Now().UTC().Add(time.Duration(i-3) * time.Hour).Truncate(time.Minute)
			}
			c.createCron(ctx, t, ns, cron(daily(due[1]), func(s *batchv1.CronJobSpec) {
				s.ConcurrencyPolicy, s.TimeZone = policy, ptr.To("Etc/UTC")
			}), due[1].Add(-24*time.Hour))
			c.awaitJobs(ctx, t, ns, due[1].Format(time.RFC3339))
			eventually(ctx, t, "the first Job is known to run", func() (bool, error) {
				cron, err := c.kube.BatchV1().CronJobs(ns).Get(ctx, "cron", metav1.GetOptions{})
				return err == nil && len(cron.Status.Active) == 1, err
			})
			// A new schedule is looked at when it is due next, which is tomorrow, or with another
			// change.
			c.patchCron(ctx, t, ns, map[string]any{"spec": map[string]any{"schedule": daily(due[2])}})
			c.patchCron(ctx, t, ns, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"look": "again"}}})
			c.told(ctx, t, ns, "CronJob", "cron", want.reason)
			var times []string
			for _, i := range want.jobs {
				times = append(times, due[i].Format(time.RFC3339))
			}
			c.awaitJobs(ctx, t, ns, times...)
		})
	}
}

// Schedules and time zones that cannot be are refused, or told by an event, and make no Job.
func TestCronJobThatCannotBe(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	for name, bad := range map[string]*batchv1.CronJob{
		"a schedule that is none": cron("every now and then", nil),
		"an unknown time zone":    cron("0 0 * * *", func(s *batchv1.CronJobSpec) { s.TimeZone = ptr.To("Mars/Olympus_Mons") }),
		"a zone in the schedule":  cron("TZ=Asia/Kolkata 0 0 * * *", nil),
	} {
		if _, err := c.kube.BatchV1().CronJobs(ns).Create(ctx, bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.createCron(ctx, t, ns, cron("59 23 31 2 *", nil), time.Now().Add(-24*time.Hour))
	c.told(ctx, t, ns, "CronJob", "cron", "InvalidSchedule")
	if jobs := c.jobs(ctx, t, ns); len(jobs) != 0 {
		t.Errorf("a schedule of no day has the Jobs of %q", jobs)
	}
}

// A finished Job goes, with its pods, when its time to live is over, and not before. This is not an
// imported controller's: it comes with our own of Jobs.
func TestFinishedJobsGo(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	create := func(name string, ttl int32) {
		t.Helper()
		pod := template(map[string]string{ends: "yes"})
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		must[*batchv1.Job](t)(c.kube.BatchV1().Jobs(ns).Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       batchv1.JobSpec{TTLSecondsAfterFinished: &ttl, Template: pod},
		}, metav1.CreateOptions{}))
	}
	create("kept", 3600)
	eventually(ctx, t, "the Job that is kept is complete", func() (bool, error) {
		job, err := c.kube.BatchV1().Jobs(ns).Get(ctx, "kept", metav1.GetOptions{})
		return err == nil && job.Status.CompletionTime != nil, err
	})
	create("short", 0)
	eventually(ctx, t, "the other one goes, with its pod", func() (bool, error) {
		_, err := c.kube.BatchV1().Jobs(ns).Get(ctx, "short", metav1.GetOptions{})
		pods := c.podNames(ctx, t, ns)
		return apierrors.IsNotFound(err) && len(pods) == 1, fmt.Errorf("%w; pods %v", err, pods)
	})
	if job := must[*batchv1.Job](t)(c.kube.BatchV1().Jobs(ns).Get(ctx, "kept", metav1.GetOptions{})); job.DeletionTimestamp != nil {
		t.Error("a Job that has an hour left goes")
	}
}
