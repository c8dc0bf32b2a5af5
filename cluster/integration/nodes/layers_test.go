package nodes

import (
	"os"
	"path/filepath"
	"testing"
)

// loseLayers has a registry that keeps its data in dir lose the layers of its images, but neither
// manifests nor configurations, until restore is called.
func loseLayers(t *testing.T, dir string) (restore func()) {
	t.Helper()
	blobs, err := filepath.Glob(filepath.Join(dir, "docker", "registry", "v2", "blobs", "sha256", "*", "*", "data"))
	if err != nil {
		t.Fatal(err)
	}
	var lost []string
	for _, blob := range blobs {
		info, err := os.Stat(blob)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() < 64<<10 {
			continue
		}
		if err := os.Rename(blob, blob+".lost"); err != nil {
			t.Fatal(err)
		}
		lost = append(lost, blob)
	}
	if len(lost) == 0 {
		t.Fatalf("none of the %d blobs in the registry is as large as a layer", len(blobs))
	}
	return func() {
		t.Helper()
		for _, blob := range lost {
			if err := os.Rename(blob+".lost", blob); err != nil {
				t.Fatal(err)
			}
		}
	}
}
