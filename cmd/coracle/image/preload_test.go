package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhatIsPreloaded(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(
		os.WriteFile(at("app.tar"), nil, 0o644),
		os.WriteFile(at(".app.tar.new"), nil, 0o644),
		os.Symlink("app.tar", at("link.tar")),
		os.Symlink("nothing", at("broken.tar")),
		unix.Mkfifo(at("fifo"), 0o644),
		os.Mkdir(at("lost+found"), 0o755),
		os.Mkdir(at("layout"), 0o755),
		os.WriteFile(at("layout/index.json"), nil, 0o644),
	)
	want := []string{"app.tar", "broken.tar", "layout", "link.tar"}
	if got, err := archives(dir); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, want %q; %v", got, want, err)
	}
	if got, err := archives(at("missing")); err != nil || len(got) > 0 {
		t.Errorf("of a directory that does not exist: %q, %v", got, err)
	}
}

// An archive that other users may change can replace any image: they are not loaded.
func TestArchivesOfOtherUsers(t *testing.T) {
	for name, test := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"of root": {func(string) error { return nil }, ""},
		"the group may write the file": {
			func(dir string) error { return os.Chmod(filepath.Join(dir, "app.tar"), 0o664) }, "others may write it: chmod go-w ",
		},
		"the file is another user's": {
			func(dir string) error { return os.Chown(filepath.Join(dir, "app.tar"), 1234, 0) }, "it belongs to user 1234: chown root ",
		},
		"all may write the directory": {
			func(dir string) error { return os.Chmod(dir, 0o1777) }, "others may write it: chmod go-w ",
		},
		"a link leads to a directory of others": {func(dir string) error {
			other := filepath.Join(dir, "other")
			return errors.Join(os.Mkdir(other, 0o755), os.Rename(filepath.Join(dir, "app.tar"), filepath.Join(other, "app.tar")),
				os.Symlink("other/app.tar", filepath.Join(dir, "app.tar")), os.Chmod(other, 0o777))
		}, "others may write it: chmod go-w "},
		"a blob of a layout is another user's": {func(dir string) error {
			layout := filepath.Join(dir, "app.tar")
			return errors.Join(os.Remove(layout), os.MkdirAll(filepath.Join(layout, "blobs"), 0o755),
				os.WriteFile(filepath.Join(layout, "blobs", "a"), nil, 0o644), os.Chown(filepath.Join(layout, "blobs", "a"), 1234, 0))
		}, "it belongs to user 1234: chown root "},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "app.tar")
			if err := errors.Join(os.WriteFile(path, nil, 0o644), test.change(dir)); err != nil {
				t.Fatal(err)
			}
			err := checkArchive(dir, path)
			if got := fmt.Sprint(err); test.want == "" && err != nil || test.want != "" && !strings.HasPrefix(got, test.want+dir) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
