package kubelet

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/client"
)

// watched are the informers that tell of this node and its pods: the process's, or when the kubelet
// is alone ones of its own that see nothing else.
type watched struct {
	name          string
	pods          cache.SharedIndexInformer
	nodes         listersv1.NodeLister
	nodesInformer cache.SharedIndexInformer
	own           []informers.SharedInformerFactory
}

func newWatched(s *client.Set, o Options) watched {
	w := watched{name: o.NodeName}
	podFactory, nodeFactory := s.Informers, s.Informers
	if o.Alone {
		selected := func(field string) informers.SharedInformerFactory {
			f := informers.NewSharedInformerFactoryWithOptions(s.Kube, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
				l.FieldSelector = fields.OneTermEqualSelector(field, o.NodeName).String()
			}))
			w.own = append(w.own, f)
			return f
		}
		podFactory, nodeFactory = selected("spec.nodeName"), selected(metav1.ObjectNameField)
	}
	w.pods = podFactory.Core().V1().Pods().Informer()
	w.nodesInformer = nodeFactory.Core().V1().Nodes().Informer()
	w.nodes = nodeFactory.Core().V1().Nodes().Lister()
	return w
}

func (w *watched) start(ctx context.Context) {
	for _, f := range w.own {
		f.Start(ctx.Done())
	}
}

func (w *watched) node() (*v1.Node, error) { return w.nodes.Get(w.name) }

// watchPods gives this node's pods to the runner as the API tells of them.
func (k *Kubelet) watchPods(ctx context.Context) {
	mine := func(obj any) (*v1.Pod, bool) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		p, ok := obj.(*v1.Pod)
		return p, ok && p.Spec.NodeName == k.opts.NodeName
	}
	registration, err := k.watched.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if p, ok := mine(obj); ok {
				k.backlog.apply(p, k.apply)
			}
		},
		UpdateFunc: func(old, obj any) {
			p, ok := mine(obj)
			if was, wasMine := mine(old); wasMine && ok && was.UID != p.UID {
				k.backlog.remove(was, k.remove) // deleted and made again between two looks
			}
			if ok {
				k.backlog.apply(p, k.apply)
			}
		},
		DeleteFunc: func(obj any) {
			if p, ok := mine(obj); ok {
				k.backlog.remove(p, k.remove)
			}
		},
	})
	if err != nil { // the informer was stopped: the process is ending
		k.opts.Log.Error("kubelet cannot watch pods", "err", err)
		return
	}
	defer func() { _ = k.watched.pods.RemoveEventHandler(registration) }()
	if !cache.WaitFor(ctx, "", registration.HasSyncedChecker()) || !k.static.await(ctx) {
		return
	}
	k.backlog.open(k.apply)
	k.endUnknown(ctx)
	<-ctx.Done()
}

// watchNode tells what waits for it what becomes of this node's object, until ctx ends.
func (k *Kubelet) watchNode(ctx context.Context) {
	seen := func(obj any) {
		if n, ok := obj.(*v1.Node); ok && n.Name == k.opts.NodeName {
			k.csi.NodeChanged(n)
			k.ranges.nodeChanged(n)
		}
	}
	registration, err := k.watched.nodesInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) },
	})
	if err != nil { // the informer was stopped: the process is ending
		k.opts.Log.Error("kubelet cannot watch its node", "err", err)
		return
	}
	<-ctx.Done()
	_ = k.watched.nodesInformer.RemoveEventHandler(registration)
}

// claimsEvery is how often the claims of volumes that can grow are read: not at all where the
// process sees them change.
func claimsEvery(o Options) time.Duration {
	if o.Alone {
		return time.Minute
	}
	return 0
}

func (k *Kubelet) apply(p *v1.Pod) {
	if kubetypes.IsMirrorPod(p) {
		k.static.mirror(p)
		return
	}
	k.status.Object(p.UID, p)
	k.admit.apply(p)
}

func (k *Kubelet) remove(p *v1.Pod) {
	if kubetypes.IsMirrorPod(p) {
		k.static.mirrorGone(p)
		return
	}
	k.admit.remove(p)
}

// endUnknown ends pods that run here, or have left files here, and that neither the API nor a file
// asks for any more. It is called when all that ask have been heard.
//
// A pod's directory exists whenever its cgroup does, so this finds all cgroups of this kubelet.
// Other cgroups may belong to the pods of another kubelet with the same cgroup root.
func (k *Kubelet) endUnknown(ctx context.Context) {
	var pods []*v1.Pod
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		var err error
		if pods, err = k.cri.LabelledPods(ctx); err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		k.opts.Log.Warn("list the runtime's pods", "err", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
	onDisk, err := k.volumes.OnDisk()
	if err != nil {
		k.opts.Log.Warn("look for pods' directories", "err", err)
	}
	for _, uid := range onDisk {
		if !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.UID == uid }) {
			p := &v1.Pod{}
			p.UID = uid
			pods = append(pods, p)
		}
	}
	for _, p := range pods {
		k.runner.RemoveUnknown(p)
	}
}

// over says whether a pod has ended for good.
func over(p *v1.Pod) bool { return podutil.IsPodPhaseTerminal(p.Status.Phase) }
