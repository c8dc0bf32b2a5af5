//go:build kubelet

package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// TestKubeletEvictsImages: when the disk of the images is nearly full, the kubelet removes those
// that no one uses, and leaves pods and their images alone.
func TestKubeletEvictsImages(t *testing.T) {
	const (
		disk  = "600m"
		least = "520Mi"
		size  = 120 << 20
	)
	ref := registry.Addr + "/test/big:1"
	big := make([]byte, size)
	if _, err := rand.NewChaCha8([32]byte{}).Read(big); err != nil { // of zeros the unpacked file would have none
		t.Fatal(err)
	}
	built, err := ociimage.Image{Layers: []ociimage.Layer{{
		Compression: ociimage.Plain,
		Files:       []ociimage.File{{Path: "big", Mode: 0o644, Data: big}},
	}}}.Build()
	if err != nil {
		t.Fatal(err)
	}
	if err := ociimage.Push(context.Background(), ref, built, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, testkit.Options{LogLevel: "info", RootSize: disk})
	k := startKubelet(t, n, kubeletOptions{config: fmt.Sprintf(
		"evictionHard: {imagefs.available: %s}\nevictionPressureTransitionPeriod: 1s\nimageMinimumGCAge: 1s\nimageGCHighThresholdPercent: 100\n",
		least)})
	manifest := strings.NewReplacer("{NAME}", "stays", "{IMAGE}", testRef("busybox"), "{RESOURCES}", "{}").Replace(warmPod)
	if err := os.WriteFile(filepath.Join(k.manifests, "stays"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	k.await(t, "the pod is ready", func() error { return k.shows("stays", "status.containerStatuses.0.ready", "true") })
	if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	there := func(ref string) bool {
		r, err := n.Images.ImageStatus(n.ctx(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetImage() != nil
	}
	k.await(t, "the unused image is gone", func() error {
		if there(ref) {
			return errors.New(ref + " is still there")
		}
		return nil
	})
	if !there(testRef("busybox")) {
		t.Error("the image of a running pod was removed")
	}
	if err := k.shows("stays", "status.containerStatuses.0.restartCount", "^0$"); err != nil {
		t.Error(err)
	}
	if err := k.shows("stays", "status.phase", "^Running$"); err != nil {
		t.Error(err)
	}
}
