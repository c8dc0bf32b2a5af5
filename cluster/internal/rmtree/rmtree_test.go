package rmtree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestAWideDirectoryIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "wide")
	for i := range 3*namesAtOnce + 1 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if i%namesAtOnce == 0 {
			path = filepath.Join(path, "sub")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Path(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestARemovalThatIsCutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(dir+"/a/b", 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Path(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("it goes on: %v", err)
	}
	if err := Path(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
