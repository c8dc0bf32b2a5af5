package upstream_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// history is what happens to the pods of a namespace, in order.
type history struct {
	events watch.Interface
	ready  map[string]bool
}

func (c *cluster) history(ctx context.Context, t *testing.T, ns string) *history {
	t.Helper()
	w := must[watch.Interface](t)(c.kube.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{}))
	t.Cleanup(w.Stop)
	return &history{w, map[string]bool{}}
}

// until reads on until an event is the last one.
func (h *history) until(ctx context.Context, t *testing.T, what string, last func(watch.EventType, *corev1.Pod) bool) {
	t.Helper()
	for {
		select {
		case e := <-h.events.ResultChan():
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("%s: the watch ended with %v", what, e.Object)
			}
			h.ready[pod.Name] = e.Type != watch.Deleted && podutil.IsPodReady(pod)
			if last(e.Type, pod) {
				return
			}
		case <-ctx.Done():
			t.Fatalf("%s: nothing more happens; ready are %v", what, h.ready)
		}
	}
}

// untilReady reads on until a pod of an image is ready.
func (h *history) untilReady(ctx context.Context, t *testing.T, name, image string) {
	t.Helper()
	h.until(ctx, t, name+" is ready", func(_ watch.EventType, pod *corev1.Pod) bool {
		return pod.Name == name && pod.Spec.Containers[0].Image == image && h.ready[name]
	})
}

// db is a StatefulSet.
func db(replicas int32, change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	app := map[string]string{"app": "db"}
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "db", Selector: &metav1.LabelSelector{MatchLabels: app}, Template: template(app),
		},
	}
	if change != nil {
		change(set)
	}
	return set
}

// createSet makes a StatefulSet.
func (c *cluster) createSet(ctx context.Context, t *testing.T, ns string, set *appsv1.StatefulSet) {
	t.Helper()
	must[*appsv1.StatefulSet](t)(c.kube.AppsV1().StatefulSets(ns).Create(ctx, set, metav1.CreateOptions{}))
}

// change merges a patch into the StatefulSet, whatever its version is.
func (c *cluster) change(ctx context.Context, t *testing.T, ns, patch string) {
	t.Helper()
	must[*appsv1.StatefulSet](t)(c.kube.AppsV1().StatefulSets(ns).Patch(ctx, "db", types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}))
}

// awaitSet waits for a status of the StatefulSet as it is now.
func (c *cluster) awaitSet(ctx context.Context, t *testing.T, ns, what string, ok func(appsv1.StatefulSetStatus) bool) {
	t.Helper()
	eventually(ctx, t, what, func() (bool, error) {
		set, err := c.kube.AppsV1().StatefulSets(ns).Get(ctx, "db", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return set.Status.ObservedGeneration == set.Generation && ok(set.Status), fmt.Errorf("status %+v", set.Status)
	})
}

func (c *cluster) podNames(ctx context.Context, t *testing.T, ns string) []string {
	t.Helper()
	var names []string
	for _, pod := range must[*corev1.PodList](t)(c.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})).Items {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return names
}

// Pods come one after the other, each when all before it are ready, and go in the other direction.
func TestStatefulSetScalesInOrder(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	h := c.history(ctx, t, ns)
	grow := func(from, to int) {
		t.Helper()
		h.until(ctx, t, "the last pod is ready", func(e watch.EventType, pod *corev1.Pod) bool {
			if e == watch.Added {
				if pod.Name != fmt.Sprint("db-", from) {
					t.Fatalf("%s comes before db-%d", pod.Name, from)
				}
				for i := range from {
					if !h.ready[fmt.Sprint("db-", i)] {
						t.Errorf("%s comes before db-%d is ready", pod.Name, i)
					}
				}
				from++
			}
			return from == to && h.ready[fmt.Sprint("db-", to-1)]
		})
	}
	c.createSet(ctx, t, ns, db(3, nil))
	grow(0, 3)
	first := must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Get(ctx, "db-0", metav1.GetOptions{}))
	if first.Spec.Hostname != "db-0" || first.Spec.Subdomain != "db" || first.Labels[appsv1.PodIndexLabel] != "0" {
		t.Errorf("the first pod is %+v", first)
	}
	c.change(ctx, t, ns, `{"spec":{"replicas":5}}`)
	grow(3, 5)
	c.change(ctx, t, ns, `{"spec":{"replicas":2}}`)
	var gone []string
	h.until(ctx, t, "three pods have gone", func(e watch.EventType, pod *corev1.Pod) bool {
		if e == watch.Deleted {
			gone = append(gone, pod.Name)
		}
		return len(gone) == 3
	})
	if want := []string{"db-4", "db-3", "db-2"}; !slices.Equal(gone, want) {
		t.Errorf("gone in this order: %v", gone)
	}
	c.awaitSet(ctx, t, ns, "two are counted", func(s appsv1.StatefulSetStatus) bool { return s.Replicas == 2 && s.AvailableReplicas == 2 })
}

// With the policy Parallel, pods do not wait for each other.
func TestStatefulSetParallel(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	h := c.history(ctx, t, ns)
	c.createSet(ctx, t, ns, db(3, func(set *appsv1.StatefulSet) {
		set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		set.Spec.Template.Labels[holds] = "yes"
	}))
	made := 0
	h.until(ctx, t, "all pods are made", func(e watch.EventType, pod *corev1.Pod) bool {
		if e == watch.Added {
			made++
		}
		if h.ready[pod.Name] {
			t.Errorf("%s is ready", pod.Name)
		}
		return made == 3
	})
}

// Only pods from the partition on are updated, the last one first, each when the one before is
// ready.
func TestStatefulSetPartition(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	h := c.history(ctx, t, ns)
	c.createSet(ctx, t, ns, db(3, nil))
	h.untilReady(ctx, t, "db-2", "image:1")
	c.change(ctx, t, ns,
		`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}},"template":{"spec":{"containers":[{"name":"main","image":"image:2"}]}}}}`)
	h.untilReady(ctx, t, "db-2", "image:2")
	c.awaitSet(ctx, t, ns, "one is updated", func(s appsv1.StatefulSetStatus) bool {
		return s.UpdatedReplicas == 1 && s.ReadyReplicas == 3 && s.CurrentRevision != s.UpdateRevision
	})
	for _, pod := range must[*corev1.PodList](t)(c.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})).Items {
		if image := pod.Spec.Containers[0].Image; (image == "image:2") != (pod.Name == "db-2") {
			t.Errorf("%s has %s", pod.Name, image)
		}
	}
	c.change(ctx, t, ns, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	updated := map[string]bool{}
	h.until(ctx, t, "the first pod is replaced", func(e watch.EventType, pod *corev1.Pod) bool {
		updated[pod.Name] = h.ready[pod.Name] && pod.Spec.Containers[0].Image == "image:2"
		if e == watch.Deleted && pod.Name == "db-0" && !updated["db-1"] {
			t.Error("db-0 goes before db-1 is updated and ready")
		}
		return updated["db-0"]
	})
	c.awaitSet(ctx, t, ns, "all are updated", func(s appsv1.StatefulSetStatus) bool {
		return s.UpdatedReplicas == 3 && s.ReadyReplicas == 3 && s.CurrentRevision == s.UpdateRevision
	})
}

// A pod that is ready counts only after minReadySeconds.
func TestStatefulSetMinReadySeconds(t *testing.T) {
	t.Parallel()
	c := whole(t)
	ctx, ns := c.namespace(t)
	h := c.history(ctx, t, ns)
	c.createSet(ctx, t, ns, db(2, func(set *appsv1.StatefulSet) {
		set.Spec.MinReadySeconds = 3600
		set.Spec.Template.Labels[fresh] = "yes"
	}))
	h.untilReady(ctx, t, "db-0", "image:1")
	c.awaitSet(ctx, t, ns, "the first is ready", func(s appsv1.StatefulSetStatus) bool {
		return s.ReadyReplicas == 1 && s.AvailableReplicas == 0
	})
	if pods := c.podNames(ctx, t, ns); !slices.Equal(pods, []string{"db-0"}) {
		t.Errorf("pods %v", pods)
	}
	c.ready(must[*corev1.Pod](t)(c.kube.CoreV1().Pods(ns).Get(ctx, "db-0", metav1.GetOptions{})), time.Now().Add(-2*time.Hour))
	h.until(ctx, t, "the second comes", func(e watch.EventType, pod *corev1.Pod) bool { return e == watch.Added && pod.Name == "db-1" })
}

// Claims go with the pods or with the set if its policy says so, and stay otherwise.
func TestStatefulSetClaims(t *testing.T) {
	t.Parallel()
	for policy, owned := range map[appsv1.PersistentVolumeClaimRetentionPolicyType]bool{
		appsv1.DeletePersistentVolumeClaimRetentionPolicyType: true,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType: false,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := whole(t)
			ctx, ns := c.namespace(t)
			h := c.history(ctx, t, ns)
			claims := func() map[string]bool { // whether each has an owner
				found := map[string]bool{}
				for _, claim := range must[*corev1.PersistentVolumeClaimList](t)(c.kube.CoreV1().PersistentVolumeClaims(ns).List(ctx,
					metav1.ListOptions{})).Items {
					found[claim.Name] = len(claim.OwnerReferences) > 0
				}
				return found
			}
			c.createSet(ctx, t, ns, db(2, func(set *appsv1.StatefulSet) {
				set.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
					WhenDeleted: policy,
					WhenScaled:  policy,
				}
				set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: claimSpec()}}
			}))
			h.untilReady(ctx, t, "db-1", "image:1")
			if found := claims(); len(found) != 2 {
				t.Fatalf("claims %v", found)
			}
			c.change(ctx, t, ns, `{"spec":{"replicas":1}}`)
			h.until(ctx, t, "a pod goes", func(e watch.EventType, pod *corev1.Pod) bool { return e == watch.Deleted && pod.Name == "db-1" })
			c.awaitSet(ctx, t, ns, "one is left", func(s appsv1.StatefulSetStatus) bool { return s.Replicas == 1 })
			if owned {
				eventually(ctx, t, "the pod's claim goes", func() (bool, error) {
					found := claims()
					_, left := found["data-db-1"]
					return !left && len(found) == 1, fmt.Errorf("claims %v", found)
				})
			} else if found := claims(); len(found) != 2 || found["data-db-1"] {
				t.Errorf("claims, with or without an owner: %v", found)
			}
			if err := c.kube.AppsV1().StatefulSets(ns).Delete(ctx, "db", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			h.until(ctx, t, "the last pod goes", func(e watch.EventType, pod *corev1.Pod) bool { return e == watch.Deleted && pod.Name == "db-0" })
			if owned {
				eventually(ctx, t, "the set's claim goes", func() (bool, error) {
					found := claims()
					return len(found) == 0, fmt.Errorf("claims %v", found)
				})
			} else if found := claims(); len(found) != 2 || found["data-db-0"] {
				t.Errorf("claims, with or without an owner: %v", found)
			}
		})
	}
}
