package lc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

func TestCRIULog(t *testing.T) {
	failed := errors.New("criu failed")
	long := strings.Repeat("x", 1<<17)
	for name, c := range map[string]struct{ log, want string }{
		"nothing":  {"", "criu failed"},
		"no error": {"(00.000010) Version: 3.17.1\n(00.000020) Error is no word for this\n", "criu failed"},
		"one": {
			"(00.1) fine\n(00.2)      1: Error (criu/mount.c:42): no mount\n(00.3) fine\n",
			"criu failed; CRIU says in dump.log: Error (criu/mount.c:42): no mount",
		},
		"many": {strings.Repeat("(0) Error (a.c:1): b\n", 9), "criu failed; CRIU says in dump.log: Error (a.c:1): b" +
			strings.Repeat("; Error (a.c:1): b", 3)},
		"unended":   {"(00.2) Error (a.c:1): cut o", "criu failed; CRIU says in dump.log: Error (a.c:1): cut o"},
		"long":      {"(0) Error (" + long + "\n", "criu failed; CRIU says in dump.log: Error (" + long[:maxCRIUErrorText]},
		"long line": {long + "\n(0) Error (a.c:1): b\n", "criu failed; CRIU says in dump.log: Error (a.c:1): b"},
		"hostile":   {"(0) Error (a.c:1): /a\x1b[2J\xff\u202eb\n", "criu failed; CRIU says in dump.log: Error (a.c:1): /a?[2J\ufffd?b"},
	} {
		t.Run(name, func(t *testing.T) {
			l := dumpLog(runtime.ImageOptions{ImageDir: "/nowhere", WorkDir: t.TempDir()})
			if err := os.WriteFile(string(l), []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := l.explain(failed); got.Error() != c.want || !errors.Is(got, failed) {
				t.Errorf("got  %.500q\nwant %.500q", got, c.want)
			}
			if err := l.explain(nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// Neither another kind of file under the log's name nor the log of an earlier run is read.
func TestCRIULogOfAnother(t *testing.T) {
	const text = "(0) Error (a.c:1): b\n"
	for name, put := range map[string]func(path string) error{
		"an earlier one": func(p string) error { return os.WriteFile(p, []byte(text), 0o600) },
		"a directory":    func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			o := runtime.ImageOptions{ImageDir: t.TempDir()}
			if err := put(filepath.Join(o.ImageDir, "restore.log")); err != nil {
				t.Fatal(err)
			}
			if said := restoreLog(o).errors(); len(said) > 0 {
				t.Errorf("it says %q", said)
			}
		})
	}
	for name, put := range map[string]func(path string) error{
		"a FIFO": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a link": func(p string) error {
			return errors.Join(os.WriteFile(p+"2", []byte(text), 0o600), os.Symlink(p+"2", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := restoreLog(runtime.ImageOptions{ImageDir: t.TempDir()})
			if err := put(string(l)); err != nil {
				t.Fatal(err)
			}
			if said := l.errors(); len(said) > 0 {
				t.Errorf("it says %q", said)
			}
		})
	}
}
