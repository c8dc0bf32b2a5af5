package status

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// bubble runs f with a writer on an API that holds one pod.
func bubble(t *testing.T, f func(w *Writer, kube *fake.Clientset, p *v1.Pod)) {
	synctest.Test(t, func(t *testing.T) {
		p := onePod(v1.RestartPolicyAlways, "", "a")
		kube := fake.NewClientset(p)
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, kube, slog.New(slog.DiscardHandler))
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
		time.Sleep(patience / 2)
		w.Object(p.UID, p) // the API tells of a change that is not the kubelet's
		w.Set(p.UID, creating(), true, false)
		synctest.Wait()
		if n := patches(kube); n != 0 {
			t.Errorf("%d patches before the pod runs", n)
		}
		time.Sleep(patience / 4)
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

// Each step of a pod that is being made can wait, also the one after a step that was written.
func TestAPodThatStartsSlowlyIsNotWrittenAtEachStep(t *testing.T) {
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		connected := creating()
		connected.PodIP = "192.0.2.1"
		kube.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			w.Set(p.UID, connected, true, false) // while the first status is being written
			return false, nil, nil
		})
		w.Object(p.UID, p)
		w.Set(p.UID, creating(), true, false)
		time.Sleep(patience + patience/2)
		synctest.Wait()
		if n := patches(kube); n != 1 {
			t.Errorf("%d patches before the pod runs", n)
		}
		time.Sleep(patience)
		synctest.Wait()
		if got := get(t, kube); got.Status.PodIP != connected.PodIP {
			t.Errorf("the address %q is in the status", got.Status.PodIP)
		}
	})
}

// That the kubelet has seen a pod's deletion is written only if the pod takes long to end.
func TestADeletionThatIsSeenWaitsForThePodsEnd(t *testing.T) {
	begin := func(w *Writer, kube *fake.Clientset, p *v1.Pod) v1.PodStatus {
		s := runningStatus()
		s.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, ObservedGeneration: 1}}
		p = p.DeepCopy()
		p.Status = *s.DeepCopy()
		w.Object(p.UID, p)
		w.Set(p.UID, s, true, false) // nothing new
		p = p.DeepCopy()
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		if err := kube.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), p, "ns"); err != nil {
			t.Fatal(err)
		}
		w.Object(p.UID, p)
		s.ObservedGeneration, s.Conditions[0].ObservedGeneration = 2, 2
		w.Set(p.UID, s, true, false)
		time.Sleep(patience / 2)
		synctest.Wait()
		if n := patches(kube); n != 0 {
			t.Errorf("%d patches at once", n)
		}
		return s
	}
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		begin(w, kube, p)
		time.Sleep(patience)
		synctest.Wait()
		if got := get(t, kube); got.Status.ObservedGeneration != 2 {
			t.Errorf("generation %d was observed", got.Status.ObservedGeneration)
		}
	})
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		s := begin(w, kube, p)
		s.Phase = v1.PodSucceeded
		w.Set(p.UID, s, false, true)
		synctest.Wait()
		_, err := kube.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
		if n := patches(kube); n != 1 || !apierrors.IsNotFound(err) {
			t.Errorf("%d patches, then %v", n, err)
		}
	})
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		s := begin(w, kube, p)
		s.Conditions[0].Status = v1.ConditionFalse // what takes it out of its Services
		w.Set(p.UID, s, true, false)
		synctest.Wait()
		if n := patches(kube); n != 1 {
			t.Errorf("%d patches when the pod is no longer ready", n)
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

// Regression: a termination message that is no UTF-8 came back different from the API, so it was
// written again and again, without a pause.
func TestWhatTheAPIChangesIsNotWrittenWithoutEnd(t *testing.T) {
	message := func(text string) v1.PodStatus {
		s := runningStatus()
		s.ContainerStatuses[0].LastTerminationState.Terminated = &v1.ContainerStateTerminated{ExitCode: 1, Message: text}
		return s
	}
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		w.Object(p.UID, p)
		w.Set(p.UID, message("\xff"), true, false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n, most := patches(kube), int(10*time.Minute/retryMost)+10; n < 2 || n > most {
			t.Errorf("%d patches in ten minutes, want at most %d", n, most)
		}
		s := message("well")
		w.Set(p.UID, s, true, false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := get(t, kube).Status.ContainerStatuses[0].LastTerminationState.Terminated.Message; got != "well" {
			t.Errorf("message %q after that", got)
		}
	})
	bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
		s := message("\xff" + strings.Repeat("\u00fc", kubecontainer.MaxPodTerminationMessageLogLength))
		normalize(p, &s)
		got := s.ContainerStatuses[0].LastTerminationState.Terminated.Message
		if !utf8.ValidString(got) || !strings.HasPrefix(got, "\uFFFD\u00fc") {
			t.Errorf("normalized to %q", got)
		}
		w.Object(p.UID, p)
		w.Set(p.UID, s, true, false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := patches(kube); n != 1 {
			t.Errorf("%d patches of a normalized status", n)
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
}

// A pod whose name another one has, as those of StatefulSets, is not written any more, whatever the
// API calls that.
func TestAPodWhoseNameAnotherHasIsNotWritten(t *testing.T) {
	uid := field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "u", "field is immutable")}
	for name, refusal := range map[string]error{
		"conflict":     apierrors.NewConflict(v1.Resource("pods"), "p", errors.New("the object has been modified")),
		"on this node": apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Pod").GroupKind(), "p", uid),
		"on no node, or another one": apierrors.NewForbidden(v1.Resource("pods"), "p",
			errors.New(`node "n" can only update pod status for pods with spec.nodeName set to itself`)),
	} {
		bubble(t, func(w *Writer, kube *fake.Clientset, p *v1.Pod) {
			kube.PrependReactor("patch", "pods", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
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
				t.Errorf("%s: %d writes", name, n)
			}
		})
	}
}
