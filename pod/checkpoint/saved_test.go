package checkpoint

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/podtest"
)

// TestHostileCheckpoints are refused with one sentence.
func TestHostileCheckpoints(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"config is no JSON":  func(d string) error { return os.WriteFile(d+"/config.dump", []byte("{"), 0o600) },
		"spec is no JSON":    func(d string) error { return os.WriteFile(d+"/spec.dump", []byte("[]"), 0o600) },
		"spec is empty":      func(d string) error { return os.WriteFile(d+"/spec.dump", []byte("{}"), 0o600) },
		"huge config":        func(d string) error { return os.Truncate(d+"/config.dump", MaxJSON+1) },
		"config is a link":   func(d string) error { return relink(d+"/config.dump", "/etc/shadow") },
		"images are a link":  func(d string) error { return relink(d+"/checkpoint", "/etc") },
		"config is a device": func(d string) error { return relink(d+"/config.dump", "/dev/zero") },
		"config is a FIFO":   func(d string) error { return errors.Join(os.Remove(d+"/config.dump"), mkfifo(d+"/config.dump")) },
		"config is missing":  func(d string) error { return os.Remove(d + "/config.dump") },
		"an image is a link": func(d string) error { return os.Symlink("/etc/shadow", d+"/checkpoint/pages-1.img") },
		"an image is a FIFO": func(d string) error { return mkfifo(d + "/checkpoint/streams.json") },
		"parent images":      func(d string) error { return os.Mkdir(d+"/checkpoint/parent", 0o700) },
		"images are missing": func(d string) error { return os.RemoveAll(d + "/checkpoint") },
		"config is a diretory": func(d string) error {
			return errors.Join(os.Remove(d+"/config.dump"), os.Mkdir(d+"/config.dump", 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			podtest.OK(t, os.WriteFile(dir+"/config.dump", []byte("{}"), 0o600))
			podtest.OK(t, os.WriteFile(dir+"/spec.dump", []byte(`{"process":{"args":["x"]},"linux":{}}`), 0o600))
			podtest.OK(t, os.Mkdir(dir+"/checkpoint", 0o700))
			if _, err := Open(dir); err != nil {
				t.Fatal(err)
			}
			podtest.OK(t, spoil(dir))
			if _, err := Open(dir); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}

func relink(path, to string) error { return errors.Join(os.RemoveAll(path), os.Symlink(to, path)) }

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// FuzzOpenSaved reads untrusted files of a saved container: they are refused, or complete enough to
// be compared.
func FuzzOpenSaved(f *testing.F) {
	f.Add([]byte(`{"name":"x","rootfsImage":"sha256:1"}`), []byte(`{"process":{"args":["x"]},"linux":{}}`))
	f.Add([]byte(`{}`), []byte(`{"process":{"capabilities":{}},"linux":{"seccomp":{}}}`))
	f.Add([]byte(`{"createdTime":"x"}`), []byte(`{"process":null}`))
	f.Fuzz(func(t *testing.T, config, spec []byte) {
		dir := t.TempDir()
		podtest.OK(t, os.WriteFile(dir+"/config.dump", config, 0o600))
		podtest.OK(t, os.WriteFile(dir+"/spec.dump", spec, 0o600))
		podtest.OK(t, os.Mkdir(dir+"/checkpoint", 0o700))
		s, err := Open(dir)
		if err != nil {
			return
		}
		_ = s.Check(&podconfig.Container{}, modestSpec())
		own := modestSpec()
		s.Apply(own)
		if own.Process.User.UID != 7 || own.Process.Capabilities == nil || len(own.Mounts) > 0 || own.Hooks != nil || len(own.Annotations) > 0 {
			t.Errorf("%+v", own)
		}
	})
}
