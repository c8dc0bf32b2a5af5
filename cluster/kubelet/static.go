package kubelet

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubepod "k8s.io/kubernetes/pkg/kubelet/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
)

// fileCheckEvery is how often the manifests are listed besides inotify's word, for file systems
// that have none.
const fileCheckEvery = time.Hour

// static runs the pods whose manifests are files on this node. Each has a mirror in the API that
// shows it there; deleting the mirror changes nothing, it is made again. A changed file is another
// pod, with another UID, that waits until the one before is gone.
type static struct {
	k       *Kubelet
	mirrors kubepod.MirrorClient
	queue   workqueue.TypedRateLimitingInterface[string] // full names whose mirrors are to be looked at
	seen    chan struct{}                                // closed when the files have been read once

	mu      sync.Mutex
	running map[string]*v1.Pod // by full name
	next    map[string]*v1.Pod // waits for the one that runs
	mirrorP map[string]*v1.Pod
	former  map[string]types.UID // mirrors of what ran before their pod's file came back
}

func newStatic(k *Kubelet) *static {
	return &static{
		k:       k,
		mirrors: kubepod.NewBasicMirrorClient(k.set.Kube, k.opts.NodeName, k.watched.nodes),
		queue:   workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		seen:    make(chan struct{}),
		running: map[string]*v1.Pod{}, next: map[string]*v1.Pod{}, mirrorP: map[string]*v1.Pod{},
		former: map[string]types.UID{},
	}
}

// await returns when all files have been read once, false if ctx ended before.
func (s *static) await(ctx context.Context) bool {
	select {
	case <-s.seen:
		return true
	case <-ctx.Done():
		return false
	}
}

// run follows the files until ctx ends.
func (s *static) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for s.lookAtMirror(ctx) {
		}
	})
	defer s.queue.ShutDown()
	if s.k.opts.StaticPodDir == "" {
		close(s.seen)
		<-ctx.Done()
		return
	}
	source := kubeletconfig.NewPodConfig(logging(s.k.recorder), unobserved{})
	kubeletconfig.NewSourceFile(klog.Background(), s.k.opts.StaticPodDir, types.NodeName(s.k.opts.NodeName), fileCheckEvery,
		source.Channel(ctx, kubetypes.FileSource))
	first := true
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-source.Updates():
			for _, p := range u.Pods {
				switch u.Op {
				case kubetypes.ADD, kubetypes.UPDATE:
					s.start(p)
				case kubetypes.REMOVE, kubetypes.DELETE:
					s.stop(p)
				}
			}
		}
		if first {
			first = false
			close(s.seen)
		}
	}
}

func (s *static) start(p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := kubecontainer.GetPodFullName(p)
	if was, ok := s.running[name]; ok && was.UID != p.UID {
		s.next[name] = p
		return
	}
	s.startLocked(name, p)
}

func (s *static) startLocked(name string, p *v1.Pod) {
	s.k.opts.Log.Info("running a static pod", "pod", name, "uid", p.UID)
	// A pod that is still ending starts again afterwards: what its mirror says is not of this run.
	before, known := s.k.runner.View(p.UID)
	if m := s.mirrorP[name]; m != nil && kubepod.IsMirrorPodOf(m, p) && !over(m) && !(known && before.Removed) {
		p = p.DeepCopy()
		p.Status = m.Status
		s.k.status.Object(p.UID, m)
	}
	s.running[name] = p
	s.k.admit.apply(p)
	s.queue.Add(name)
}

func (s *static) stop(p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := kubecontainer.GetPodFullName(p)
	if n := s.next[name]; n != nil && n.UID == p.UID {
		delete(s.next, name)
	}
	if was := s.running[name]; was != nil && was.UID == p.UID {
		s.k.opts.Log.Info("ending a static pod", "pod", name, "uid", p.UID)
		s.k.admit.remove(was)
	}
}

// gone is called when nothing is left of a pod. If its file came back while it ended, it is running
// again, and only its mirror is replaced.
func (s *static) gone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, p := range s.running {
		if p.UID != uid {
			continue
		}
		s.queue.Add(name)
		if _, again := s.k.runner.View(uid); again {
			if m := s.mirrorP[name]; m != nil {
				s.former[name] = m.UID
			}
			continue
		}
		delete(s.running, name)
		if n := s.next[name]; n != nil {
			delete(s.next, name)
			s.startLocked(name, n)
		}
	}
}

// mirror handles a mirror pod of the API.
func (s *static) mirror(m *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := kubecontainer.GetPodFullName(m)
	s.mirrorP[name] = m
	if p := s.running[name]; p != nil && kubepod.IsMirrorPodOf(m, p) {
		s.k.status.Object(p.UID, m)
	}
	s.queue.Add(name)
}

func (s *static) mirrorGone(m *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := kubecontainer.GetPodFullName(m)
	if was := s.mirrorP[name]; was != nil && was.UID == m.UID {
		delete(s.mirrorP, name)
		delete(s.former, name)
	}
	s.queue.Add(name)
}

// lookAtMirror brings one mirror together with its pod.
func (s *static) lookAtMirror(ctx context.Context) bool {
	name, quit := s.queue.Get()
	if quit {
		return false
	}
	defer s.queue.Done(name)
	if !s.await(ctx) {
		return false // whose mirror it is is not known yet
	}
	s.mu.Lock()
	p, m, former := s.running[name], s.mirrorP[name], s.former[name]
	s.mu.Unlock()
	var err error
	switch {
	case m != nil && (p == nil || m.DeletionTimestamp != nil || m.UID == former || !kubepod.IsMirrorPodOf(m, p)):
		// What it mirrors is no more. Its deletion brings another look, which makes the new one.
		_, err = s.mirrors.DeleteMirrorPod(ctx, name, &m.UID)
	case m == nil && p != nil:
		err = s.mirrors.CreateMirrorPod(ctx, p)
	}
	if err != nil && ctx.Err() == nil {
		s.k.opts.Log.Warn("mirror of a static pod", "pod", name, "err", err)
		s.queue.AddRateLimited(name)
		return true
	}
	s.queue.Forget(name)
	return true
}

// unobserved takes upstream's notes on when pods were first seen, which no one reads.
type unobserved struct{}

func (unobserved) ObservedPodOnWatch(*v1.Pod, time.Time) {}
