package status

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// bubble runs f with a writer on an API that holds one pod.
func bubble(t *testing.T, f func(w *Writer, kube *fake.Clientset, p *v1.Pod)) {
	synctest.Test(t, func(t *testing.T) {
		p := onePod(v1.RestartPolicyAlways, "", "a")
		kube := fake.NewClientset(p)
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, kube)
		defer w.Wait()
		defer cancel()
		f(w, kube, p)
	})
}

func get(t *testing.T, kube *fake.Clientset) *v1.Pod {
	t.Helper()
	p, err := kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patches(kube *fake.Clientset) int {
	n := 0
	for _, a := range kube.Actions() {
		if a.GetVerb() == "patch" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func creating() v1.PodStatus {
	return v1.PodStatus{Phase: v1.PodPending, ContainerStatuses: []v1.ContainerStatus{{
		Name: "a", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: containerCreating}},
	}}}
}

func runningStatus() v1.PodStatus {
	return v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{{
		Name: "a", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}},
	}}}
}

func TestAPodThatStartsQuicklyIsWrittenOnce(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, creating(), true, false)
		time.Sleep(50 * time.Millisecond)
		w.Set(p.UID, runningStatus(), true, false)
		synctest.Wait()
		if got := get(t, kube); got.Status.Phase != v1.PodRunning || patches(kube) != 1 {
			t.Errorf("phase %s after %d patches", got.Status.Phase, patches(kube))
		}
	})
}

func TestAPodThatStartsSlowlyIsShownToBeMade(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, creating(), true, false)
		time.Sleep(patience + time.Millisecond)
		synctest.Wait()
		if got := get(t, kube); len(got.Status.ContainerStatuses) != 1 {
			t.Errorf("status %v", got.Status)
		}
	})
}

func TestAFailedWriteIsTriedAgainWithWhatIsNewest(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		var fails atomic.Int64
		fails.Store(3)
		kube.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			return fails.Add(-1) >= 0, nil, errors.New("the API is away")
		})
		w.Object(p.UID, p)
		w.Set(p.UID, v1.PodStatus{Phase: v1.PodRunning, Message: "old"}, true, false)
		synctest.Wait()
		w.Set(p.UID, v1.PodStatus{Phase: v1.PodRunning, Message: "new"}, true, false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := get(t, kube); got.Status.Message != "new" {
			t.Errorf("message %q", got.Status.Message)
		}
	})
}

// Not every conflict says that the pod has been replaced.
func TestAConflictIsNotTheEndOfThePod(t *testing.T) {
	conflict := apierrors.NewConflict(v1.Resource("pods"), "p", errors.New("the object has been modified"))
	refuse := func(kube *fake.Clientset, verb string) *atomic.Int64 {
		fails := &atomic.Int64{}
		fails.Store(1)
		kube.PrependReactor(verb, "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			return fails.Add(-1) >= 0, nil, conflict
		})
		return fails
	}
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		fails := refuse(kube, "patch")
		w.Object(p.UID, p)
		w.Set(p.UID, runningStatus(), true, false)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := get(t, kube); fails.Load() >= 0 || got.Status.Phase != v1.PodRunning {
			t.Errorf("status after a conflict: phase %q", got.Status.Phase)
		}
	})
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		fails := refuse(kube, "delete")
		p = p.DeepCopy()
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.Object(p.UID, p)
		w.Set(p.UID, v1.PodStatus{Phase: v1.PodFailed}, false, true)
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); fails.Load() >= 0 || !apierrors.IsNotFound(err) {
			t.Errorf("deletion after a conflict: %v", err)
		}
	})
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		fails := refuse(kube, "patch")
		fails.Store(1000)
		other := p.DeepCopy()
		other.UID = "another"
		if err := kube.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), other, "ns"); err != nil {
			t.Fatal(err)
		}
		w.Object(p.UID, p)
		w.Set(p.UID, runningStatus(), true, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := patches(kube); n != 1 {
			t.Errorf("%d writes for a pod whose name another has", n)
		}
	})
}

func TestAFinalPhaseWaitsForTheContainersEnd(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, runningStatus(), true, false)
		failed := runningStatus()
		failed.Phase, failed.Reason = v1.PodFailed, "DeadlineExceeded"
		w.Set(p.UID, failed, true, false)
		synctest.Wait()
		if got := get(t, kube); got.Status.Phase != v1.PodPending && got.Status.Phase != v1.PodRunning && got.Status.Phase != "" {
			t.Errorf("phase %s while a container runs", got.Status.Phase)
		}
		w.Set(p.UID, failed, false, false)
		synctest.Wait()
		if got := get(t, kube); got.Status.Phase != v1.PodFailed || got.Status.Reason != "DeadlineExceeded" {
			t.Errorf("phase %s", got.Status.Phase)
		}
	})
}

func TestTheObjectGoesWhenThePodIsGone(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, v1.PodStatus{Phase: v1.PodFailed}, false, true)
		synctest.Wait()
		get(t, kube) // nobody asked for its deletion
		deleted := get(t, kube).DeepCopy()
		deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		w.Object(p.UID, deleted)
		synctest.Wait()
		if _, err := kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the object is still there: %v", err)
		}
		last := kube.Actions()[len(kube.Actions())-2].(k8stesting.DeleteActionImpl)
		if *last.DeleteOptions.GracePeriodSeconds != 0 || *last.DeleteOptions.Preconditions.UID != p.UID {
			t.Errorf("deleted with %+v", last.DeleteOptions)
		}
	})
}

func TestConditionsOfOthersAreLeftAlone(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		p = p.DeepCopy()
		p.Status.Conditions = []v1.PodCondition{{Type: "gate", Status: v1.ConditionTrue}}
		if _, err := kube.CoreV1().Pods("ns").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Object(p.UID, p)
		s := runningStatus()
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: "gate", Status: v1.ConditionFalse}}
		w.Set(p.UID, s, true, false)
		synctest.Wait()
		for _, c := range get(t, kube).Status.Conditions {
			if c.Status != v1.ConditionTrue {
				t.Errorf("condition %+v", c)
			}
		}
	})
}

func TestWhatSomebodyElseWroteIsWrittenOver(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, runningStatus(), true, false)
		synctest.Wait()
		wrong := get(t, kube).DeepCopy()
		wrong.Status.Phase = v1.PodPending
		if _, err := kube.CoreV1().Pods("ns").UpdateStatus(t.Context(), wrong, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Object(p.UID, wrong)
		synctest.Wait()
		if got := get(t, kube); got.Status.Phase != v1.PodRunning {
			t.Errorf("phase %s", got.Status.Phase)
		}
	})
}
