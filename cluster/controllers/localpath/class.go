package localpath

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	storageutil "k8s.io/kubernetes/pkg/apis/storage/util"
	"k8s.io/utils/ptr"
)

// ClassName is the StorageClass that clusters have from the start.
const ClassName = "local-path"

// EnsureClass makes the StorageClass, unless there is one of its name: what a user has made of it
// stays. It is the default one if there is no other.
func EnsureClass(ctx context.Context, kube kubernetes.Interface) error {
	classes := kube.StorageV1().StorageClasses()
	all, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	others := false
	for i := range all.Items {
		if all.Items[i].Name == ClassName {
			return nil
		}
		others = others || storageutil.IsDefaultAnnotation(all.Items[i].ObjectMeta)
	}
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: ClassName}, Provisioner: Provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if !others {
		class.Annotations = map[string]string{storageutil.IsDefaultStorageClassAnnotation: "true"}
	}
	if _, err = classes.Create(ctx, class, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
