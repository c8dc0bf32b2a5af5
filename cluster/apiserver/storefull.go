package apiserver

import (
	"context"
	"errors"
	"net/http"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// errStoreFull is what clients get who create or change an object while etcd accepts no writes.
// Upstream's answer is an internal error with the words of etcd's protocol.
var errStoreFull = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage",
	Message: "the cluster's store is full: nothing can be created or changed, reading and deleting go on; 'coracle status' says what to do",
}}

// fullStorage is a storage whose errors say that it is full.
type fullStorage struct{ storage.Interface }

func (f fullStorage) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	return explainFull(f.Interface.Create(ctx, key, obj, out, ttl))
}

func (f fullStorage) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, existing runtime.Object,
) error {
	return explainFull(f.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, update, existing))
}

func explainFull(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return errStoreFull
	}
	return err
}
