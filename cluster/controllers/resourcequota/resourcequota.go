// Package resourcequota keeps the usage in the status of ResourceQuotas right.
//
// Admission adds to a quota's usage what is created; this controller computes the usage again from
// what exists, with upstream's evaluators: when a quota is made or changed, when something that it
// counts is deleted or no longer counts (a pod that ended), and every five minutes, since nothing
// else would correct a request that was admitted and then failed.
//
// Pods, Services, PersistentVolumeClaims and ResourceQuotas come from the informers that all share.
// Other kinds are only counted, by metadata; each is watched from the moment that the first quota
// names it (objectcounts.go), custom resources included. A kind that the server does not know has
// no usage. Errors of one kind do not keep the others from being written, and are repeated with the
// frame's back-off.
package resourcequota

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/utils/clock"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/feed"
)

const (
	workers = 5
	// recalculateEvery is the longest that a wrong usage stays.
	recalculateEvery = 5 * time.Minute
)

// quotaKind is counted by the informer by which the controller hears of a quota: another one might
// not have the quota yet, and nothing would tell when it has.
var quotaKind = corev1.SchemeGroupVersion.WithResource("resourcequotas")

type controller struct {
	set      *client.Set
	quotas   corelisters.ResourceQuotaLister
	registry quota.Registry
	frame    *frame.Controller
	counted  *counted
}

// New returns the controller; its keys are ResourceQuotas.
func New(set *client.Set, metadata metadata.Interface) *frame.Controller {
	quotas := set.Informers.Core().V1().ResourceQuotas()
	listers := generic.ListerFuncForResourceFunc(set.Informers.ForResource)
	c := &controller{
		set: set, quotas: quotas.Lister(),
		registry: generic.NewRegistry([]quota.Evaluator{
			core.NewPodEvaluator(listers, clock.RealClock{}),
			core.NewServiceEvaluator(listers),
			core.NewPersistentVolumeClaimEvaluator(listers),
			generic.NewObjectCountEvaluator(quotaKind.GroupResource(), generic.ListResourceUsingListerFunc(listers, quotaKind),
				corev1.ResourceQuotas),
		}),
	}
	c.frame = frame.New("resourcequota", workers, set.Logger(), c.sync)
	c.counted = &counted{set: set, metadata: metadata, registry: c.registry, changed: c.replenish}
	feed.Changes(c.frame, quotas.Informer(), func(old, obj any) []string {
		before, _ := old.(*corev1.ResourceQuota)
		now, _ := obj.(*corev1.ResourceQuota)
		if before != nil && now == nil {
			c.replenish(quotaKind.GroupResource(), before.Namespace)
		}
		if before == nil && now != nil || before != nil && now != nil && !quota.Equals(before.Spec.Hard, now.Spec.Hard) {
			return frame.Self(now)
		}
		return nil
	})
	informers := set.Informers.Core().V1()
	matters := install.DefaultUpdateFilter()
	for resource, informer := range map[string]cache.SharedIndexInformer{
		"pods":                   informers.Pods().Informer(),
		"services":               informers.Services().Informer(),
		"persistentvolumeclaims": informers.PersistentVolumeClaims().Informer(),
	} {
		gvr := corev1.SchemeGroupVersion.WithResource(resource)
		feed.Changes(c.frame, informer, func(old, obj any) []string {
			if old == nil || obj != nil && !matters(gvr, old, obj) {
				return nil // what came was added by admission
			}
			c.replenish(gvr.GroupResource(), old.(metav1.Object).GetNamespace())
			return nil
		})
	}
	c.frame.Also(c.counted.run)
	return c.frame
}

// replenish has the quotas of a namespace looked at that count resource.
func (c *controller) replenish(resource schema.GroupResource, namespace string) {
	evaluator := c.registry.Get(resource)
	if evaluator == nil {
		return
	}
	quotas, _ := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	for _, q := range quotas {
		if len(evaluator.MatchingResources(quota.ResourceNames(q.Status.Hard))) > 0 {
			c.frame.Add(q.Namespace + "/" + q.Name)
		}
	}
}

func (c *controller) sync(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return err
	}
	q, err := c.quotas.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.frame.AddAfter(key, recalculateEvery)
	if err := c.counted.ensure(ctx, quota.ResourceNames(q.Spec.Hard)); err != nil {
		return err
	}
	hard := quota.Add(corev1.ResourceList{}, q.Spec.Hard)
	// What cannot be computed keeps its last usage.
	used := quota.Add(corev1.ResourceList{}, q.Status.Used)
	usage, usageErr := quota.CalculateUsage(namespace, q.Spec.Scopes, hard, c.registry, q.Spec.ScopeSelector)
	for resource, quantity := range usage {
		used[resource] = quantity
	}
	used = quota.Mask(used, quota.ResourceNames(hard))
	if q.Status.Hard != nil && q.Status.Used != nil &&
		equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) && quota.Equals(used, q.Status.Used) {
		return usageErr
	}
	q = q.DeepCopy()
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: used}
	_, err = c.set.Kube.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(usageErr, err)
}
