package images

import (
	"os"
	"path/filepath"
	"testing"
)

// What builds the demo builds none of the other images' programs.
func TestDemoNeedsOnlyItsWebServer(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	if err := os.MkdirAll(filepath.Join(bin, "test"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "test", "web"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	src, err := NewSource(bin)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := src.Demo(); err != nil || len(list) == 0 {
		t.Errorf("the demo has the images %v, %v", list, err)
	}
}
