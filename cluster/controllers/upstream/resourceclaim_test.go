package upstream

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
)

// A pod with a template gets a claim of its own, and is told its name.
func TestResourceClaimsOfTemplates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(
			&resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"}},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-uid"},
				Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("gpu")}}},
			})
		set := &client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
		c := NewResourceClaims(set)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		set.Informers.Start(ctx.Done())
		time.Sleep(time.Second) // upstream's looks every 100 ms whether informers have synced
		synctest.Wait()
		claims, err := kube.ResourceV1().ResourceClaims("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(claims.Items) != 1 || !metav1.IsControlledBy(&claims.Items[0], &metav1.ObjectMeta{UID: "p-uid"}) {
			t.Errorf("claims are %+v, %v", claims.Items, err)
		}
		pod, err := kube.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil || len(pod.Status.ResourceClaimStatuses) != 1 || len(claims.Items) == 1 &&
			ptr.Deref(pod.Status.ResourceClaimStatuses[0].ResourceClaimName, "") != claims.Items[0].Name {
			t.Errorf("the pod's status is %+v, %v", pod.Status, err)
		}
		stop()
		running.Wait()
		set.Informers.Shutdown()
	})
}

// Devices that a pod has had as an extended resource are free when it has ended.
func TestClaimOfAnExtendedResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(
			&resourcev1.ResourceClaim{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: "claim", Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
					Finalizers:      []string{resourcev1.Finalizer},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "p-uid", Controller: ptr.To(true)}},
				},
				Status: resourcev1.ResourceClaimStatus{
					Allocation:  &resourcev1.AllocationResult{},
					ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p-uid"}},
				},
			},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-uid"},
				Spec:       corev1.PodSpec{NodeName: "n"},
				Status: corev1.PodStatus{
					Phase: corev1.PodSucceeded, ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "claim"},
				},
			})
		set := &client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}
		c := NewResourceClaims(set)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		set.Informers.Start(ctx.Done())
		time.Sleep(time.Second) // upstream's looks every 100 ms whether informers have synced
		synctest.Wait()
		claim, err := kube.ResourceV1().ResourceClaims("default").Get(t.Context(), "claim", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) && (err != nil || len(claim.Status.ReservedFor) > 0 || claim.Status.Allocation != nil) {
			t.Errorf("the claim is %+v", claim)
		}
		stop()
		running.Wait()
		set.Informers.Shutdown()
	})
}
