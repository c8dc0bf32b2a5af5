package upstream

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// givenKey is where in a context a *[]*v1.PersistentVolume is, for the volumes that are changed
// with it.
type givenKey struct{}

// recording is the client of upstream's binder, which keeps to itself what volumes it has given to
// claims, and in which version.
type recording struct{ kubernetes.Interface }

// CoreV1 implements kubernetes.Interface.
func (c recording) CoreV1() corev1client.CoreV1Interface { return recordingCore{c.Interface.CoreV1()} }

type recordingCore struct{ corev1client.CoreV1Interface }

// PersistentVolumes implements corev1client.CoreV1Interface.
func (c recordingCore) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return recordingVolumes{c.CoreV1Interface.PersistentVolumes()}
}

type recordingVolumes struct {
	corev1client.PersistentVolumeInterface
}

// Update implements corev1client.PersistentVolumeInterface.
func (c recordingVolumes) Update(ctx context.Context, pv *v1.PersistentVolume, o metav1.UpdateOptions) (*v1.PersistentVolume, error) {
	changed, err := c.PersistentVolumeInterface.Update(ctx, pv, o)
	if given, ok := ctx.Value(givenKey{}).(*[]*v1.PersistentVolume); ok && err == nil {
		*given = append(*given, changed)
	}
	return changed, err
}
