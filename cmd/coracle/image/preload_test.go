package image

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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
