package main

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var simulatedNodes = []string{"node-a", "node-b", "node-c"}

// phaseLabel says in which phase a pod ends up; the default is Running.
const phaseLabel = "oracle/phase"

// addNodes makes the nodes, and plays their kubelets until the API server has gone.
func (s *side) addNodes(ctx context.Context) error {
	for i, name := range simulatedNodes {
		room := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
			corev1.ResourcePods: resource.MustParse("110"),
		}
		node, err := s.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%2),
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		node.ResourceVersion = "" // it may have been tainted meanwhile
		now := metav1.Now()
		node.Status = corev1.NodeStatus{
			Capacity: room, Allocatable: room,
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("127.0.1.%d", i+1)}},
			NodeInfo:  corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OperatingSystem: "linux", Architecture: "amd64"},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "simulated", LastHeartbeatTime: now,
				LastTransitionTime: now,
			}},
		}
		if _, err := s.kube.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	s.kubelet.Go(s.playKubelet)
	return nil
}

// playKubelet goes on until the API server no longer answers.
func (s *side) playKubelet() {
	ctx, failures := context.Background(), 0
	var beat time.Time
	for ; failures < 5; time.Sleep(poll) {
		if time.Since(beat) > 10*time.Second {
			beat = time.Now()
			s.renewLeases(ctx)
		}
		pods, err := s.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			failures++
			continue
		}
		failures = 0
		for i := range pods.Items {
			s.playPod(ctx, &pods.Items[i])
		}
	}
}

// renewLeases does not care for errors: another round follows.
func (s *side) renewLeases(ctx context.Context) {
	leases := s.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for _, name := range simulatedNodes {
		spec := coordinationv1.LeaseSpec{
			HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40),
			RenewTime: &metav1.MicroTime{Time: time.Now()},
		}
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			_, _ = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
			continue
		}
		lease.Spec = spec
		_, _ = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
}

// playPod brings a bound pod to its phase, and removes one that is to be deleted. It does not care
// for errors: the pod is seen again.
func (s *side) playPod(ctx context.Context, pod *corev1.Pod) {
	pods := s.kube.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.Spec.NodeName == "":
	case pod.DeletionTimestamp != nil:
		_ = pods.Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.Status.Phase == corev1.PodPending && len(pod.Spec.SchedulingGates) == 0:
		now := metav1.Now()
		pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &now
		if phase := pod.Labels[phaseLabel]; phase != "" {
			pod.Status.Phase = corev1.PodPhase(phase)
		}
		running := pod.Status.Phase == corev1.PodRunning
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}
		if !running {
			ready.Status, ready.Reason = corev1.ConditionFalse, "PodCompleted"
		}
		pod.Status.Conditions = append(pod.Status.Conditions, ready)
		pod.Status.PodIP, pod.Status.HostIP = podIP, "127.0.1.9"
		pod.Status.PodIPs, pod.Status.HostIPs = []corev1.PodIP{{IP: podIP}}, []corev1.HostIP{{IP: "127.0.1.9"}}
		for _, c := range pod.Spec.Containers {
			status := corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: "sha256:1", ContainerID: "simulated://1", Ready: running,
				Started: &running,
			}
			if running {
				status.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
			} else {
				status.State.Terminated = &corev1.ContainerStateTerminated{
					ExitCode: map[corev1.PodPhase]int32{corev1.PodFailed: 1}[pod.Status.Phase], Reason: "Completed", StartedAt: now, FinishedAt: now,
				}
			}
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
		}
		_, _ = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
}

// podIP is every pod's: who gets which would be another on each side.
const podIP = "10.1.0.1"
