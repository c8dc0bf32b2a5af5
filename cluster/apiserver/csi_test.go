package apiserver

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// The objects of drivers are upstream's, with its defaults, and no client is warned of them.
func TestDriversObjects(t *testing.T) {
	ns := namespace(t, admin(t))
	var warned warnings
	config := rest.CopyConfig(server.ClientConfig("admin", "system:masters"))
	config.WarningHandler = &warned
	storage := clientOf(t, config).StorageV1()
	driver, err := storage.CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "objects.example.org"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		return storage.CSIDrivers().Delete(ctx, driver.Name, metav1.DeleteOptions{})
	})
	if s := driver.Spec; !*s.AttachRequired || *s.PodInfoOnMount || *s.StorageCapacity || *s.RequiresRepublish || *s.SELinuxMount ||
		*s.FSGroupPolicy != storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy ||
		!slices.Equal(s.VolumeLifecycleModes, []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}) {
		t.Errorf("defaults of a CSIDriver: %+v", s)
	}
	capacity := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csisc-"}, StorageClassName: "fast", Capacity: resource.NewQuantity(1<<30, resource.BinarySI),
		NodeTopology: &metav1.LabelSelector{},
	}
	if _, err := storage.CSIStorageCapacities(ns).Create(t.Context(), capacity, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	class, err := storage.VolumeAttributesClasses().Create(t.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "objects-gold"}, DriverName: driver.Name, Parameters: map[string]string{"iops": "3000"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	atEnd(t, func(ctx context.Context) error {
		body := []byte(`{"metadata":{"finalizers":null}}`)
		if _, err := storage.VolumeAttributesClasses().Patch(ctx, class.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			return err
		}
		return storage.VolumeAttributesClasses().Delete(ctx, class.Name, metav1.DeleteOptions{})
	})
	if !slices.Contains(class.Finalizers, "kubernetes.io/vac-protection") {
		t.Errorf("finalizers of a VolumeAttributesClass: %q", class.Finalizers)
	}
	twice := storagev1.CSINodeDriver{Name: driver.Name, NodeID: "id"}
	_, err = storage.CSINodes().Create(t.Context(), &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: "twice"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{twice, twice}},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("a CSINode that names a driver twice: %v", err)
	}
	if len(warned) > 0 {
		t.Errorf("warnings %q", warned)
	}
}

// A kubelet may do what a driver on its node needs: for its own node, its own pods and no others.
func TestNodesAndTheirDrivers(t *testing.T) {
	client := admin(t)
	ns := namespace(t, client)
	own, other := ns+"-own", ns+"-other"
	for _, name := range []string{own, other} {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		atEnd(t, func(ctx context.Context) error {
			return client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
		})
		pv := "of-" + name
		if _, err := client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "to-" + name},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: "d.example.org", NodeName: name,
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		atEnd(t, func(ctx context.Context) error {
			return client.StorageV1().VolumeAttachments().Delete(ctx, "to-"+name, metav1.DeleteOptions{})
		})
		if _, err := client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + name}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "on-" + name},
			Spec: corev1.PodSpec{
				NodeName: name, Containers: []corev1.Container{{Name: "main", Image: "image"}},
				Volumes: []corev1.Volume{{
					Name:         "v",
					VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "on-" + name}},
				}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kubelet := clientOf(t, server.ClientConfig("system:node:"+own, "system:nodes"))
	attach, csiNodes, claims := kubelet.StorageV1().VolumeAttachments(), kubelet.StorageV1().CSINodes(),
		kubelet.CoreV1().PersistentVolumeClaims(ns)
	grown := []byte(`{"status":{"capacity":{"storage":"2Gi"},"conditions":[{"type":"FileSystemResizePending","status":"True"}]}}`)
	status := func(name string, body []byte) error {
		_, err := claims.Patch(t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	}
	csiNode := func(name string) error {
		_, err := csiNodes.Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for what, do := range map[string]func() error{
		"read its attachment": func() error {
			_, err := attach.Get(t.Context(), "to-"+own, metav1.GetOptions{})
			return err
		},
		"grow its pod's claim": func() error { return status("on-"+own, grown) },
		"list drivers": func() error {
			_, err := kubelet.StorageV1().CSIDrivers().List(t.Context(), metav1.ListOptions{})
			return err
		},
	} {
		// The authorizer follows the objects.
		eventually(t, "it may "+what, func() (bool, error) { err := do(); return err == nil, err })
	}
	if err := csiNode(own); err != nil {
		t.Errorf("it may not make its CSINode: %v", err)
	}
	atEnd(t, func(ctx context.Context) error {
		return client.StorageV1().CSINodes().Delete(ctx, own, metav1.DeleteOptions{})
	})
	eventually(t, "the other node may read its attachment, so that the authorizer knows both", func() (bool, error) {
		_, err := clientOf(t, server.ClientConfig("system:node:"+other, "system:nodes")).StorageV1().VolumeAttachments().Get(t.Context(),
			"to-"+other, metav1.GetOptions{})
		return err == nil, err
	})
	for what, err := range map[string]error{
		"read another's attachment": func() error {
			_, err := attach.Get(t.Context(), "to-"+other, metav1.GetOptions{})
			return err
		}(),
		"list attachments": func() error {
			_, err := attach.List(t.Context(), metav1.ListOptions{FieldSelector: fmt.Sprintf("spec.nodeName=%s", own)})
			return err
		}(),
		"delete its attachment":  attach.Delete(t.Context(), "to-"+own, metav1.DeleteOptions{}),
		"grow another's claim":   status("on-"+other, grown),
		"bind its pod's claim":   status("on-"+own, []byte(`{"status":{"phase":"Bound"}}`)),
		"make another's CSINode": csiNode(other),
		"make a driver's CSIDriver": func() error {
			_, err := kubelet.StorageV1().CSIDrivers().Create(t.Context(),
				&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "evil.example.org"}}, metav1.CreateOptions{})
			return err
		}(),
		"read attachments of no one": func() error { _, err := attach.Get(t.Context(), "none", metav1.GetOptions{}); return err }(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a node may %s: %v", what, err)
		}
	}
}
