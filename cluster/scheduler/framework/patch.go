package framework

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/coracle-project/coracle/cluster/internal/mergepatch"
)

// PatchStatus changes pod's status to status at the API server: only what is different, since
// others write there too. A server that is not there for a moment is tried again. If another pod
// has the name by now, the error is that pod is not found.
func PatchStatus(ctx context.Context, kube kubernetes.Interface, pod *v1.Pod, status *v1.PodStatus) error {
	if equality.Semantic.DeepEqual(&pod.Status, status) {
		return nil
	}
	patch, err := mergepatch.PodStatus(pod, status)
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return retry.OnError(retry.DefaultBackoff, transient, func() error {
		_, err := kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid); ok && cause.Field == "metadata.uid" {
			return apierrors.NewNotFound(v1.Resource("pods"), pod.Name)
		}
		return err
	})
}

func transient(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) ||
		utilnet.IsConnectionRefused(err)
}
