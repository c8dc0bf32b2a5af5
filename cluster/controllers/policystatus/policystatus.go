// Package policystatus tells in the status of each ValidatingAdmissionPolicy which of its
// expressions do not fit the types of the objects that it is about.
package policystatus

import (
	"context"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	applyadmissionv1 "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	admissionlisters "k8s.io/client-go/listers/admissionregistration/v1"
	"k8s.io/client-go/restmapper"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
)

// fieldManager is the name under which the status is applied, as upstream's.
const fieldManager = "validatingadmissionpolicy-status"

type controller struct {
	set      *client.Set
	policies admissionlisters.ValidatingAdmissionPolicyLister
}

// New returns the controller; its keys are ValidatingAdmissionPolicies.
func New(set *client.Set) *frame.Controller {
	policies := set.Informers.Admissionregistration().V1().ValidatingAdmissionPolicies()
	c := &controller{set: set, policies: policies.Lister()}
	f := frame.New("validatingadmissionpolicy-status", 1, set.Logger(), c.sync)
	f.Watch(policies.Informer(), frame.Self)
	return f
}

func (c *controller) sync(ctx context.Context, name string) error {
	policy, err := c.policies.Get(name)
	if apierrors.IsNotFound(err) || err == nil && policy.Generation <= policy.Status.ObservedGeneration {
		return nil
	}
	if err != nil {
		return err
	}
	found := applyadmissionv1.TypeChecking()
	for _, w := range c.check(policy) {
		found.WithExpressionWarnings(applyadmissionv1.ExpressionWarning().WithFieldRef(w.FieldRef).WithWarning(w.Warning))
	}
	status := applyadmissionv1.ValidatingAdmissionPolicyStatus().WithObservedGeneration(policy.Generation).WithTypeChecking(found)
	_, err = c.set.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().ApplyStatus(ctx,
		applyadmissionv1.ValidatingAdmissionPolicy(name).WithStatus(status), metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// check asks the API server for the types, each time: policies are few and hardly change, and the
// types are megabytes.
func (c *controller) check(policy *admissionv1.ValidatingAdmissionPolicy) []admissionv1.ExpressionWarning {
	api := c.set.Kube.Discovery()
	checker := validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: api},
		RestMapper:     restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(api)),
	}
	return checker.Check(policy)
}
