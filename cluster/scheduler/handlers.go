package scheduler

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// watch has what informers see go into the cache and the queue.
func (s *Scheduler) watch(f informers.SharedInformerFactory) error {
	// A pod that has ended takes no room and needs no node: to the scheduler it is gone.
	pods, err := f.Core().V1().Pods().Informer().AddEventHandler(toolscache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			pod := podOf(obj)
			return pod != nil && !terminal(pod)
		},
		Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: s.podAdded, UpdateFunc: s.podUpdated, DeleteFunc: s.podDeleted},
	})
	if err != nil {
		return err
	}
	nodes, err := f.Core().V1().Nodes().Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: s.nodeAdded, UpdateFunc: s.nodeUpdated, DeleteFunc: s.nodeDeleted,
	})
	if err != nil {
		return err
	}
	claims, err := f.Core().V1().PersistentVolumeClaims().Informer().AddEventHandler(s.moves(framework.Claim))
	if err != nil {
		return err
	}
	volumes, err := f.Core().V1().PersistentVolumes().Informer().AddEventHandler(s.moves(framework.Volume))
	if err != nil {
		return err
	}
	classes, err := f.Storage().V1().StorageClasses().Informer().AddEventHandler(s.moves(framework.Class))
	if err != nil {
		return err
	}
	s.synced = []toolscache.DoneChecker{
		pods.HasSyncedChecker(), nodes.HasSyncedChecker(),
		claims.HasSyncedChecker(), volumes.HasSyncedChecker(), classes.HasSyncedChecker(),
		// What the plugins list.
		f.Core().V1().Namespaces().Informer().HasSyncedChecker(),
		f.Core().V1().Services().Informer().HasSyncedChecker(),
		f.Core().V1().ReplicationControllers().Informer().HasSyncedChecker(),
		f.Apps().V1().ReplicaSets().Informer().HasSyncedChecker(),
		f.Apps().V1().StatefulSets().Informer().HasSyncedChecker(),
		f.Policy().V1().PodDisruptionBudgets().Informer().HasSyncedChecker(),
	}
	return nil
}

// moves has objects of a kind that come, change or go move on pods that wait for that.
func (s *Scheduler) moves(kind framework.Kind) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.queue.Move(framework.Event{Kind: kind, Action: framework.Add}, nil, obj, nil) },
		UpdateFunc: func(old, obj any) {
			s.queue.Move(framework.Event{Kind: kind, Action: framework.UpdateOther}, old, obj, nil)
		},
		DeleteFunc: func(obj any) { s.queue.Move(framework.Event{Kind: kind, Action: framework.Delete}, obj, nil, nil) },
	}
}

func terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// podOf returns the pod that an event is about, the last that was known if its deletion was missed.
func podOf(obj any) *v1.Pod {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	pod, _ := obj.(*v1.Pod)
	return pod
}

func assigned(pod *v1.Pod) bool { return pod.Spec.NodeName != "" }

// responsible says whether pod wants to be scheduled by one of our profiles.
func (s *Scheduler) responsible(pod *v1.Pod) bool { return s.profiles[pod.Spec.SchedulerName] != nil }

func (s *Scheduler) podAdded(obj any) {
	switch pod := obj.(*v1.Pod); {
	case assigned(pod):
		s.cache.SetPod(pod)
		s.queue.Move(framework.Event{Kind: framework.AssignedPod, Action: framework.Add}, nil, pod, nil)
	case s.responsible(pod):
		s.queue.Add(pod)
	}
}

func (s *Scheduler) podUpdated(before, after any) {
	switch old, pod := before.(*v1.Pod), after.(*v1.Pod); {
	case old.UID != pod.UID: // its deletion was missed
		s.podDeleted(old)
		s.podAdded(pod)
	case assigned(old):
		s.cache.SetPod(pod)
		if s.queue.Curious() {
			for _, e := range framework.PodChange(old, pod) {
				s.queue.Move(e, old, pod, nil)
			}
		}
	case assigned(pod):
		s.cache.SetPod(pod)
		s.queue.Move(framework.Event{Kind: framework.AssignedPod, Action: framework.Add}, nil, pod, nil)
		if s.responsible(pod) {
			s.queue.Delete(pod) // bound by someone else, else it is not there
		}
	case s.responsible(pod) && old.ResourceVersion != pod.ResourceVersion:
		if s.cache.Assumed(pod.UID) != nil {
			if old.DeletionTimestamp == nil && pod.DeletionTimestamp != nil {
				s.assumedDeleted(pod)
			}
			return
		}
		s.queue.Update(old, pod)
		if n := old.Status.NominatedNodeName; n != "" && n != pod.Status.NominatedNodeName {
			s.roomLeft(old)
		}
	}
}

func (s *Scheduler) podDeleted(obj any) {
	pod := podOf(obj)
	if pod == nil {
		s.log.Error("scheduler: deletion of what is not a pod", "object", obj)
		return
	}
	_, missed := obj.(toolscache.DeletedFinalStateUnknown)
	assumed := s.cache.Assumed(pod.UID) != nil
	if assumed { // before RemovePod, after which no one knows
		s.assumedDeleted(pod)
		s.caughtUp.Reset(letGo)
	}
	if assigned(pod) || missed {
		if s.cache.RemovePod(pod.UID) {
			s.caughtUp.Reset(letGo)
			s.queue.Move(assignedDelete, pod, nil, nil)
		}
		if !missed {
			return
		}
	}
	if !s.responsible(pod) {
		return
	}
	s.queue.Delete(pod)
	if !assumed && pod.Status.NominatedNodeName != "" {
		s.roomLeft(pod)
	}
}

// assumedDeleted frees at once what an assumed pod takes that is being deleted; binding it will
// fail.
func (s *Scheduler) assumedDeleted(pod *v1.Pod) {
	info := s.cache.Assumed(pod.UID)
	if info == nil {
		return
	}
	if w := s.handle.Waiting.Get(pod.UID); w == nil || !w.Reject("", "removed") {
		s.cache.Forget(pod.UID)
		s.preparing.end(pod.UID, errRemoved)
	}
	s.queue.Move(assignedDelete, info.Pod(), nil, nil)
}

// roomLeft is told that pod does no more wait for the room that it was nominated to, which pods of
// at most its priority had to leave to it.
func (s *Scheduler) roomLeft(pod *v1.Pod) {
	priority := corev1helpers.PodPriority(pod)
	s.queue.Move(assignedDelete, pod, nil, func(p *v1.Pod) bool { return corev1helpers.PodPriority(p) <= priority })
}

func (s *Scheduler) nodeAdded(obj any) {
	node := obj.(*v1.Node)
	s.cache.SetNode(node)
	s.queue.Move(framework.Event{Kind: framework.Node, Action: framework.Add}, nil, node, nil)
}

func (s *Scheduler) nodeUpdated(before, after any) {
	old, node := before.(*v1.Node), after.(*v1.Node)
	s.cache.SetNode(node)
	if !s.queue.Curious() {
		return
	}
	for _, e := range framework.NodeChange(old, node) {
		s.queue.Move(e, old, node, nil)
	}
}

func (s *Scheduler) nodeDeleted(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	node, ok := obj.(*v1.Node)
	if !ok {
		s.log.Error("scheduler: deletion of what is not a node", "object", obj)
		return
	}
	s.queue.Move(framework.Event{Kind: framework.Node, Action: framework.Delete}, node, nil, nil)
	s.cache.RemoveNode(node.Name)
	s.caughtUp.Reset(letGo)
}
