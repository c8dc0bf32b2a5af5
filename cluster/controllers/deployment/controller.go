// Package deployment rolls each Deployment's pods from one template to the next by growing and
// shrinking ReplicaSets: one per template, told apart by the label pod-template-hash.
//
// A sync works on one [rollout]: the Deployment, the ReplicaSet of its present template (new) and
// those of earlier ones (old). It takes one step of its strategy, writes the ReplicaSets that the
// step changes, and at the end the Deployment's status and revision annotation, in one request and
// only if they differ. Each step waits for the cache to show the one before; what pods do reaches
// it through the ReplicaSets' statuses.
//
//	paused, or replicas changed in the middle of a rollout   proportional.go
//	RollingUpdate                                            rolling.go
//	Recreate                                                 recreate.go
//	deprecated rollback annotation                           rollback.go
//
// Finding and making ReplicaSets, revisions and history are in revisions.go; conditions and the
// progress deadline in status.go. Arithmetic that kubectl or other tools depend on (hash, revision
// annotations, surge and proportion rounding) is upstream's own code, imported.
package deployment

import (
	"context"
	"fmt"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	util "k8s.io/kubernetes/pkg/controller/deployment/util"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/adoption"
	"github.com/coracle-project/coracle/cluster/controllers/internal/freshness"
)

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

const replicaSetKind = "ReplicaSet"

type controller struct {
	queue       *frame.Controller
	kube        kubernetes.Interface
	events      record.EventRecorder
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	cache       cache.Indexer // of Deployments
	setCache    cache.Indexer
	podCache    cache.Indexer
	writes      *freshness.Writes
}

// New returns the controller of Deployments.
func New(set *client.Set) *frame.Controller {
	apps := set.Informers.Apps().V1()
	deployments, sets := apps.Deployments(), apps.ReplicaSets()
	pods := set.Informers.Core().V1().Pods().Informer()
	adoption.MustIndex(sets.Informer())
	adoption.MustIndex(pods)
	events, stop := set.Recorder("deployment-controller", "")

	c := &controller{
		kube: set.Kube, events: events,
		deployments: deployments.Lister(), sets: sets.Lister(),
		cache: deployments.Informer().GetIndexer(), setCache: sets.Informer().GetIndexer(), podCache: pods.GetIndexer(),
		writes: freshness.New(set.Logger()),
	}
	guarded := c.writes.Guard(c.sync, func(key string, d time.Duration) { c.queue.AddAfter(key, d) })
	c.queue = frame.New("deployment", 5, set.Logger(), guarded)
	c.queue.Watch(deployments.Informer(), frame.Self)
	c.queue.Watch(sets.Informer(), adoption.Concerns(kind.Kind, func(rs *appsv1.ReplicaSet) ([]*appsv1.Deployment, error) {
		return util.GetDeploymentsForReplicaSet(c.deployments, rs)
	}))
	c.queue.Watch(pods, c.concernsPod)
	c.queue.Also(func(ctx context.Context) { <-ctx.Done(); stop() })
	return c.queue
}

// concernsPod is the Deployment two owners up, if it is one that waits for its old pods to be gone
// before it starts new ones. Others learn all they need from their ReplicaSets.
func (c *controller) concernsPod(obj any) []string {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil || ref.Kind != replicaSetKind {
		return nil
	}
	rs, err := c.sets.ReplicaSets(pod.Namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return nil
	}
	up := metav1.GetControllerOfNoCopy(rs)
	if up == nil || up.Kind != kind.Kind {
		return nil
	}
	d, err := c.deployments.Deployments(pod.Namespace).Get(up.Name)
	if err != nil || d.UID != up.UID || d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
		return nil
	}
	return []string{cache.MetaObjectToName(d).String()}
}

// rollout is what one sync works on.
type rollout struct {
	*controller
	key string
	// d is a copy: a sync changes its status and annotations, and writes them at its end.
	d *appsv1.Deployment
	// was is d as the cache has it.
	was *appsv1.Deployment
	// new is the ReplicaSet of d's template, nil as long as there is none. old are all others,
	// shrunk ones included. Both are the cache's own or the API's answers: not to be changed.
	new *appsv1.ReplicaSet
	old []*appsv1.ReplicaSet
}

func (c *controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	was, err := c.deployments.Deployments(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		return nil
	}
	if err != nil {
		return err
	}
	r := &rollout{controller: c, key: key, d: was.DeepCopy(), was: was}
	if err := r.step(ctx); err != nil && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return err
	}
	return nil
}

// step does what is next for the Deployment.
func (r *rollout) step(ctx context.Context) error {
	if reflect.DeepEqual(r.d.Spec.Selector, &metav1.LabelSelector{}) {
		r.events.Event(r.d, corev1.EventTypeWarning, "SelectingAll", "This deployment is selecting all pods. A non-empty selector is required.")
		r.d.Status.ObservedGeneration = r.d.Generation
		return r.write(ctx)
	}
	if err := r.find(ctx); err != nil {
		return err
	}
	if r.d.DeletionTimestamp == nil {
		r.notePause()
	}
	if err := r.reviseNew(ctx); err != nil {
		return err
	}
	switch {
	case r.d.DeletionTimestamp != nil:
		return r.writeStatus(ctx)
	case r.d.Spec.Paused:
		return r.rescale(ctx)
	case rollbackTo(r.d) != nil:
		return r.rollBack(ctx, *rollbackTo(r.d))
	case r.replicasChanged():
		return r.rescale(ctx)
	case r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return r.recreate(ctx)
	case r.d.Spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType:
		return r.roll(ctx)
	}
	return fmt.Errorf("deployment %s has an unknown strategy %q", r.key, r.d.Spec.Strategy.Type)
}

// all returns every ReplicaSet of the rollout.
func (r *rollout) all() []*appsv1.ReplicaSet {
	all := make([]*appsv1.ReplicaSet, 0, len(r.old)+1)
	all = append(all, r.old...)
	if r.new != nil {
		all = append(all, r.new)
	}
	return all
}

// find claims the Deployment's ReplicaSets and sorts them into new and old.
func (r *rollout) find(ctx context.Context) error {
	selector, err := metav1.LabelSelectorAsSelector(r.d.Spec.Selector)
	if err != nil {
		return fmt.Errorf("deployment %s has an invalid selector: %w", r.key, err)
	}
	owned, err := adoption.Claim[*appsv1.ReplicaSet]{
		Owner: r.d, Kind: kind, Selector: selector,
		Read: func(ctx context.Context) (metav1.Object, error) {
			return r.kube.AppsV1().Deployments(r.d.Namespace).Get(ctx, r.d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, patch []byte) error {
			patched, err := r.kube.AppsV1().ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			if err == nil {
				r.writes.Wrote(r.key, r.setCache, patched.ResourceVersion)
			}
			return err
		},
	}.Of(ctx, adoption.Candidates[*appsv1.ReplicaSet](r.setCache, kind.Kind, r.d))
	if err != nil {
		return err
	}
	r.new = util.FindNewReplicaSet(r.d, owned)
	_, r.old = util.FindOldReplicaSets(r.d, owned)
	return nil
}
