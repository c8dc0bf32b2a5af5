package manifests

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// Regression: a manifest that a power failure had left empty was one without objects, so what had
// been applied from it was deleted.
func TestAnEmptyFileIsAnError(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		want    error
	}{
		"nothing":         {"", errEmpty},
		"a comment":       {"# nothing to see\n", nil},
		"a line":          {"\n", nil},
		"empty documents": {"---\n---\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(test.content), 0o644); err != nil {
				t.Fatal(err)
			}
			files, err := read(dir)
			if err != nil || !errors.Is(files["a.yaml"].err, test.want) || len(files["a.yaml"].objects) != 0 {
				t.Errorf("%+v, %v, want %v", files, err, test.want)
			}
		})
	}
}

// Manifests are applied with all rights, so no other user may write them.
func TestManifestsOfOtherUsers(t *testing.T) {
	for _, test := range []struct {
		name      string
		dir, file os.FileMode
		owner     int  // of the file, instead of this user
		whole     bool // no file is read
		want      string
	}{
		{name: "ours", dir: 0o755, file: 0o644},
		{name: "secret", dir: 0o700, file: 0o600},
		{name: "a file of the group", dir: 0o755, file: 0o664, want: "others may write it: chmod go-w "},
		{name: "a file of all", dir: 0o755, file: 0o646, want: "others may write it: chmod go-w "},
		{name: "a directory of the group", dir: 0o775, file: 0o644, whole: true, want: "others may write it: chmod go-w "},
		{name: "a directory like /tmp", dir: 0o777 | os.ModeSticky, file: 0o644, whole: true, want: "others may write it: chmod go-w "},
		{name: "another user's file", dir: 0o755, file: 0o644, owner: 12345, want: "it belongs to user 12345: chown root "},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.yaml")
			err := os.WriteFile(path, []byte(configMap("one", "1")), 0o644)
			err = errors.Join(err, os.Chmod(dir, test.dir), os.Chmod(path, test.file))
			if test.owner != 0 {
				err = errors.Join(err, os.Chown(path, test.owner, test.owner))
			}
			if err != nil {
				t.Fatal(err)
			}
			files, err := read(dir)
			if !test.whole {
				if err != nil {
					t.Fatal(err)
				}
				err = files["a.yaml"].err
			}
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasPrefix(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
