package manifests

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFilesBeingWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(path, []byte(configMap("one", "1")), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, writing := range []bool{false, true, false} {
		var writer *os.File
		if writing {
			var err error
			if writer, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
				t.Fatal(err)
			}
		}
		files, err := read(dir)
		if got := errors.Is(files["a.yaml"].err, errWriting); err != nil || got != writing || len(files["a.yaml"].objects) == 0 != writing {
			t.Errorf("%+v, %v; being written: %t", files, err, writing)
		}
		if writing {
			if err := writer.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
