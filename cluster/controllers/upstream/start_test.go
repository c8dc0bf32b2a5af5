package upstream_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// begins are what imported controllers log when they start.
var begins = []string{
	"Starting stateful set controller", "Starting cronjob controller v2", "Starting HPA controller",
	"Starting ephemeral volume controller", "Starting disruption controller", `"Starting controller" name=replicationcontroller`,
}

// begun says how often each has been logged.
func begun() map[string]int {
	times := map[string]int{}
	for _, line := range begins {
		times[line] = logged.count(line)
	}
	return times
}

// A cluster without objects that need them runs none of the imported controllers. TestRestart shows
// that the log would tell.
func TestNothingStartsWithoutObjects(t *testing.T) {
	before := begun()
	c := whole(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for kind, synced := range c.server.Informers().WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Errorf("the informer of %v has not started", kind)
		}
	}
	c.namespace(t) // controllers work
	if after := begun(); !maps.Equal(before, after) {
		t.Errorf("started: %v, and before %v", after, before)
	}
}

// Objects that exist when the controllers start are acted on, as those that come later.
func TestRestart(t *testing.T) {
	dir, err := os.MkdirTemp("", "ctl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ns := "default"
	before := must[*cluster](t)(start(dir, false))
	must[*corev1.ServiceAccount](t)(before.kube.CoreV1().ServiceAccounts(ns).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	before.createSet(ctx, t, ns, db(2, nil))
	app := map[string]string{"app": "web"}
	must[*appsv1.Deployment](t)(before.kube.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: app}, Template: busy(app)},
	}, metav1.CreateOptions{}))
	before.createScaler(ctx, t, ns, autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, nil)
	before.createBudget(ctx, t, ns, "db", "1")
	before.createWithScratch(ctx, t, ns, "p")
	must[*corev1.ReplicationController](t)(before.kube.CoreV1().ReplicationControllers(ns).Create(ctx, &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "old"},
		Spec: corev1.ReplicationControllerSpec{
			Selector: map[string]string{"app": "old"},
			Template: ptr.To(template(map[string]string{"app": "old"})),
		},
	}, metav1.CreateOptions{}))
	due := time.Now().UTC().Add(-2 * time.Hour).Truncate(time.Minute)
	zoned := cron(daily(due), nil)
	zoned.Spec.TimeZone = ptr.To("Etc/UTC")
	before.createCron(ctx, t, ns, zoned, due.Add(-24*time.Hour))
	if err := before.stop(); err != nil {
		t.Fatal(err)
	}

	started := begun()
	c := must[*cluster](t)(start(dir, true))
	defer func() {
		if err := c.stop(); err != nil {
			t.Error(err)
		}
	}()
	c.usage.set(ns, 150)
	c.awaitSet(ctx, t, ns, "the StatefulSet's pods are ready", func(s appsv1.StatefulSetStatus) bool { return s.ReadyReplicas == 2 })
	c.awaitAllowed(ctx, t, ns, "db", 1)
	c.awaitJobs(ctx, t, ns, due.Format(time.RFC3339))
	eventually(ctx, t, "the other objects are acted on", func() (bool, error) {
		old, err := c.kube.CoreV1().ReplicationControllers(ns).Get(ctx, "old", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		web, err := c.kube.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, err = c.kube.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "p-scratch", metav1.GetOptions{})
		return err == nil && old.Status.ReadyReplicas == 1 && *web.Spec.Replicas == 3,
			fmt.Errorf("the claim: %w; %d of the ReplicationController, %d wanted by the autoscaler", err, old.Status.ReadyReplicas,
				*web.Spec.Replicas)
	})
	for line, times := range begun() {
		if times != started[line]+1 {
			t.Errorf("%d times in the log: %s", times-started[line], line)
		}
	}
}
