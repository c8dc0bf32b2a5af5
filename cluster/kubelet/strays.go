package kubelet

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

const (
	// strayTimeout bounds one look at what the runtime has of a pod.
	strayTimeout = time.Minute
	// strayAgain is how long after a look that failed the next one is taken.
	strayAgain = 10 * time.Second
)

// strays are pods that the runtime tells of and that no one asks for. An earlier process of the
// kubelet may have had the runtime make a sandbox, which is done only after the pod was deleted and
// endUnknown has looked.
type strays struct {
	k     *Kubelet
	queue workqueue.TypedInterface[types.UID]
}

func newStrays(k *Kubelet) *strays {
	return &strays{k: k, queue: workqueue.NewTyped[types.UID]()}
}

// add has a pod looked at that the runner does not know. Until all pods are known, endUnknown is
// still to come.
func (s *strays) add(uid types.UID) {
	if s.k.backlog.opened() {
		s.queue.Add(uid)
	}
}

// run ends strays until ctx does.
func (s *strays) run(ctx context.Context) {
	defer context.AfterFunc(ctx, s.queue.ShutDown)()
	for {
		uid, quit := s.queue.Get()
		if quit {
			return
		}
		if err := s.end(ctx, uid); err != nil && ctx.Err() == nil {
			s.k.opts.Log.Warn("look for a pod that the API no longer has", "uid", uid, "err", err)
			s.queue.Add(uid)
			select { // the runtime would fail for the others, too
			case <-ctx.Done():
			case <-time.After(strayAgain):
			}
		}
		s.queue.Done(uid)
	}
}

// end ends a pod if the runtime has anything of it. Mostly it has not: the last events of a pod
// come when its removal is over.
func (s *strays) end(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, strayTimeout)
	defer cancel()
	p, err := s.k.cri.LabelledPod(ctx, uid)
	if p != nil {
		s.k.runner.RemoveUnknown(p)
	}
	return err
}
