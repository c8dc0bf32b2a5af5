package apitest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	daemonutil "k8s.io/kubernetes/pkg/controller/daemon/util"
)

// Namespace is where tests put their objects.
const Namespace = "default"

// graceOf is how long a deleted object lives on: a pod that is on a node until its kubelet is done.
func graceOf(obj runtime.Object) *int64 {
	grace := int64(0)
	if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		grace = 30
	}
	return &grace
}

// Pods returns the pods there are, sorted by name.
func (s *Server) Pods(t *testing.T) []*corev1.Pod {
	t.Helper()
	list, err := s.Kube.CoreV1().Pods(Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}

// SetPod changes a pod's spec and status at once, with all permissions.
func (s *Server) SetPod(t *testing.T, pod *corev1.Pod, change func(*corev1.Pod)) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	obj, err := s.tracker.Get(gvr, pod.Namespace, pod.Name)
	if err != nil {
		t.Fatal(err)
	}
	now := obj.(*corev1.Pod)
	change(now)
	if _, err := s.store(gvr, now); err != nil {
		t.Fatal(err)
	}
}

// Start puts a pod on a node (a daemon's pod on the one that it is meant for) and makes it run and
// be ready.
func (s *Server) Start(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.SetPod(t, pod, func(p *corev1.Pod) {
		if node, err := daemonutil.GetTargetNodeName(p); err == nil {
			p.Spec.NodeName = node
		} else {
			p.Spec.NodeName = "node"
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		}}
	})
}

// End lets a pod finish: its container exits with code.
func (s *Server) End(t *testing.T, pod *corev1.Pod, code int32) {
	t.Helper()
	s.SetPod(t, pod, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.Conditions = nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  p.Spec.Containers[0].Name,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(time.Now())}},
		}}
	})
}

// Leave ends the grace period of a pod that is being deleted, as a kubelet that is done with it.
func (s *Server) Leave(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	s.SetPod(t, pod, func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = new(int64) })
}

// Kubelet does for one pod what kubelets do if all goes well: it leaves if it is being deleted, it
// starts if it has not run yet. It returns whether there was such a pod.
func (s *Server) Kubelet(t *testing.T) bool {
	t.Helper()
	for _, pod := range s.Pods(t) {
		switch {
		case pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds > 0:
			s.Leave(t, pod)
			return true
		case pod.DeletionTimestamp == nil && pod.Status.Phase == "":
			s.Start(t, pod)
			return true
		}
	}
	return false
}

// Converge lets kubelets and controllers work, one pod at a time, until none has anything left to
// do. each, if not nil, is called between any two of their moves.
func (s *Server) Converge(t *testing.T, each func()) {
	t.Helper()
	s.Settle()
	for range 1000 {
		if each != nil {
			each()
		}
		did := s.Kubelet(t)
		s.Settle()
		if !did {
			return
		}
	}
	t.Fatal("pods keep changing")
}

// Events returns the events there are as "Type Reason Message", in the order they were written.
// Equal ones that were counted up count once.
func (s *Server) Events(t *testing.T) []string {
	t.Helper()
	list, err := s.Kube.CoreV1().Events(Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b corev1.Event) int {
		return cmp.Or(len(a.ResourceVersion)-len(b.ResourceVersion), cmp.Compare(a.ResourceVersion, b.ResourceVersion))
	})
	texts := make([]string, len(list.Items))
	for i, e := range list.Items {
		texts[i] = e.Type + " " + e.Reason + " " + e.Message
	}
	return texts
}
