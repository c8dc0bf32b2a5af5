package apitest

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/batch/job"
)

// statuses are the strategies by which a real server checks a status that a controller writes: no
// counter may run backwards, no Job may be over while pods are left.
var statuses = map[string]rest.RESTUpdateStrategy{
	"daemonsets":  daemonset.StatusStrategy,
	"deployments": deployment.StatusStrategy,
	"jobs":        job.StatusStrategy,
	"replicasets": replicaset.StatusStrategy,
}

// validateStatus returns what a real server would answer to a new status.
func validateStatus(gvr schema.GroupVersionResource, obj, old runtime.Object) error {
	strategy, ok := statuses[gvr.Resource]
	if !ok {
		return nil
	}
	internal := func(obj runtime.Object) (runtime.Object, error) {
		return legacyscheme.Scheme.ConvertToVersion(obj, runtime.InternalGroupVersioner)
	}
	now, err := internal(obj)
	if err != nil {
		return err
	}
	was, err := internal(old)
	if err != nil {
		return err
	}
	if errs := strategy.ValidateUpdate(context.Background(), now, was); len(errs) > 0 {
		m, _ := meta.Accessor(obj)
		return apierrors.NewInvalid(schema.GroupKind{Group: gvr.Group, Kind: gvr.Resource}, m.GetName(), errs)
	}
	return nil
}
