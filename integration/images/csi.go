package images

import (
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// csiPrograms are Kubernetes' programs that run alongside a CSI driver.
var csiPrograms = []string{
	"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller", "csi-node-driver-registrar",
}

// CSI are the images of `make test-csi`: each program that hack/csi/build.sh builds into Bin's
// neighbour csi by itself, as upstream's images, and the driver with this machine's mkfs.btrfs over
// a busybox.
func (s Source) CSI() ([]Named, error) {
	var list []Named
	for _, name := range csiPrograms {
		list = append(list, Named{"csi/" + name + ":1", s.csiProgram(name)})
	}
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	mkfs, err := hostPrograms([]string{"mkfs.btrfs"})
	if err != nil {
		return nil, err
	}
	driver := ociimage.Layer{Files: append(ociimage.Dirs("csi"),
		ociimage.File{Path: "csi-driver", Mode: 0o755, Source: s.csiFile("csi-driver")})}
	return append(list, Named{"csi/driver:1", base.Over(ocispec.ImageConfig{Entrypoint: []string{"/csi-driver"}, Env: []string{path}},
		mkfs, driver)}), nil
}

// CSIMock are the images of Kubernetes' specs "CSI Mock", at the names that the manifests of its
// e2e suite have. The sidecars are those of CSI. The driver is
// hack/conformance/csimock.
func (s Source) CSIMock() ([]Named, error) {
	list, err := s.Conformance()
	if err != nil {
		return nil, err
	}
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	mock := ociimage.Layer{Files: []ociimage.File{{
		Path: "csimock", Mode: 0o755,
		Source: filepath.Join(filepath.Dir(s.Bin), "conformance", "csimock"),
	}}}
	const storage = "sig-storage/"
	return append(list,
		Named{"e2e-test-images/busybox:1.36.1-1", base},
		Named{storage + "hostpathplugin:v1.17.1", base.Over(ocispec.ImageConfig{Entrypoint: []string{"/csimock"}, Env: []string{path}}, mock)},
		Named{storage + "csi-provisioner:v6.1.1", s.csiProgram("csi-provisioner")},
		Named{storage + "csi-attacher:v4.11.0", s.csiProgram("csi-attacher")},
		Named{storage + "csi-resizer:v2.1.0", s.csiProgram("csi-resizer")},
		Named{storage + "csi-snapshotter:v8.5.0", s.csiProgram("csi-snapshotter")},
		Named{storage + "csi-node-driver-registrar:v2.16.0", s.csiProgram("csi-node-driver-registrar")},
		Named{storage + "snapshot-controller:v8.5.0", s.csiProgram("snapshot-controller")},
	), nil
}

func (s Source) csiFile(name string) string { return filepath.Join(filepath.Dir(s.Bin), "csi", name) }

// csiProgram is the image of one program.
func (s Source) csiProgram(name string) ociimage.Image {
	return ociimage.Image{
		Layers: []ociimage.Layer{{Files: []ociimage.File{{Path: name, Mode: 0o755, Source: s.csiFile(name)}}}},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/" + name}, Env: []string{path}},
	}
}
