// Package images defines the images that the tests, the demo and the benchmarks
// run: Debian's static busybox and small programs of ours, no download.
package images

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// Named is an image and the name (repository:tag) it goes by.
type Named struct {
	Name  string
	Image ociimage.Image
}

// Source says where the programs inside the images come from.
type Source struct {
	Bin     string // the directory `make testbins` fills (bin/test)
	Busybox string // a static busybox
}

// NewSource finds the programs below the repository's bin directory. The busybox
// is the distribution's. Programs that the demo does not need may be missing.
func NewSource(bin string) (Source, error) {
	s := Source{Bin: filepath.Join(bin, "test"), Busybox: "/bin/busybox"}
	for _, f := range []string{s.Busybox, filepath.Join(s.Bin, "web")} {
		if _, err := os.Stat(f); err != nil {
			return Source{}, fmt.Errorf("%w: run `make testbins` first", err)
		}
	}
	return s, nil
}

const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// BusyboxImage is a root file system like that of the usual busybox image.
func (s Source) BusyboxImage() (ociimage.Image, error) {
	list, err := exec.Command(s.Busybox, "--list").Output()
	if err != nil {
		return ociimage.Image{}, fmt.Errorf("%s --list: %w", s.Busybox, err)
	}
	files := ociimage.Dirs("bin", "dev", "etc", "home", "usr/bin", "usr/sbin", "var/spool/mail", "var/www", "var/run", "proc", "sys")
	files = append(files,
		ociimage.File{Path: "root", Mode: fs.ModeDir | 0o700},
		ociimage.File{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		ociimage.File{Path: "bin/busybox", Mode: 0o755, Source: s.Busybox},
		ociimage.File{Path: "etc/passwd", Mode: 0o644, Data: []byte(passwd)},
		ociimage.File{Path: "etc/group", Mode: 0o644, Data: []byte(group)},
		ociimage.File{Path: "etc/shadow", Mode: 0o600, Data: []byte("root:*::0:::::\n")},
		ociimage.File{Path: "usr/bin/env", Symlink: "../../bin/env"},
	)
	for a := range strings.FieldsSeq(string(list)) {
		if a != "busybox" {
			files = append(files, ociimage.File{Path: "bin/" + a, Mode: 0o755, Hardlink: "bin/busybox"})
		}
	}
	return ociimage.Image{
		Layers: []ociimage.Layer{{Files: files}},
		Config: ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{path}},
	}, nil
}

// Demo is the one image of `make up`: our web server over busybox.
func (s Source) Demo() ([]Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	web := base.Over(ocispec.ImageConfig{
		Entrypoint: []string{"/usr/local/bin/web"}, Env: []string{path},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}}, StopSignal: "SIGTERM",
	}, s.web("usr/local/bin/web"))
	return []Named{{"demo/web:1", web}, {"demo/busybox:1", base}}, nil
}

// Test are the images of the integration tests, in several formats.
func (s Source) Test() ([]Named, error) {
	demo, err := s.Demo()
	if err != nil {
		return nil, err
	}
	web, base := demo[0].Image, demo[1].Image
	docker := base
	docker.Docker = true
	zstd := base.Over(base.Config,
		ociimage.Layer{Compression: ociimage.Zstd, Files: []ociimage.File{{Path: "etc/zstd", Mode: 0o644, Data: []byte("zstd\n")}}},
		ociimage.Layer{Compression: ociimage.Plain, Files: []ociimage.File{{Path: "etc/plain", Mode: 0o644, Data: []byte("plain\n")}}})
	// The upper layer hides a file and a whole directory of the lower one.
	whiteout := base.Over(base.Config,
		ociimage.Layer{Files: append(ociimage.Dirs("opt/keep", "opt/opaque"),
			ociimage.File{Path: "opt/keep/gone", Mode: 0o644, Data: []byte("x")},
			ociimage.File{Path: "opt/keep/stays", Mode: 0o644, Data: []byte("x")},
			ociimage.File{Path: "opt/opaque/old", Mode: 0o644, Data: []byte("x")})},
		ociimage.Layer{Files: append(ociimage.Dirs("opt/keep", "opt/opaque"),
			ociimage.File{Path: "opt/keep/.wh.gone", Mode: 0o644},
			ociimage.File{Path: "opt/opaque/.wh..wh..opq", Mode: 0o644},
			ociimage.File{Path: "opt/opaque/new", Mode: 0o644, Data: []byte("x")})})
	// The same layer is listed twice; the second one brings back what the layer between hides.
	again := ociimage.Layer{Files: []ociimage.File{{Path: "etc/again", Mode: 0o644, Data: []byte("again\n")}}}
	repeated := base.Over(base.Config, again, ociimage.Layer{Files: []ociimage.File{{Path: "etc/.wh.again", Mode: 0o644}}}, again)
	user := base.Over(ocispec.ImageConfig{
		Cmd: []string{"sh"}, Env: []string{path, "FROM_IMAGE=yes"}, User: "www-data",
		WorkingDir: "/var/www",
	})
	return []Named{
		{"test/busybox:1", base},
		{"test/docker:1", docker},
		{"test/zstd:1", zstd},
		{"test/whiteout:1", whiteout},
		{"test/repeated:1", repeated},
		{"test/user:1", user},
		{"test/web:1", web},
		{"test/pause:1", s.pause("")},
	}, nil
}

// Bench are the payload of the benchmark and the pause image of the peers.
func (s Source) Bench() ([]Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	return []Named{
		{"bench/payload:1", base.Over(base.Config, s.pause("").Layers...)},
		{"pause:3.10", s.pause("")},
	}, nil
}

func (s Source) web(as string) ociimage.Layer {
	return ociimage.Layer{Files: append(ociimage.Dirs(filepath.Dir(as)),
		ociimage.File{Path: as, Mode: 0o755, Source: filepath.Join(s.Bin, "web")})}
}

// pause is the smallest image; a version makes it another one.
func (s Source) pause(version string) ociimage.Image {
	c := ocispec.ImageConfig{Entrypoint: []string{"/pause"}, User: "65535:65535", Env: []string{path}}
	if version != "" {
		c.Labels = map[string]string{"version": version}
	}
	return ociimage.Image{
		Layers: []ociimage.Layer{{Files: []ociimage.File{{Path: "pause", Mode: 0o755, Source: filepath.Join(s.Bin, "pause")}}}},
		Config: c,
	}
}

const passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
sys:x:3:3:sys:/dev:/bin/false
sync:x:4:100:sync:/bin:/bin/sync
mail:x:8:8:mail:/var/spool/mail:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
operator:x:37:37:Operator:/var:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
`

const group = `root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
mail:x:8:
kmem:x:9:
wheel:x:10:root
www-data:x:33:
operator:x:37:
users:x:100:
nobody:x:65534:
`

// Push builds the images and pushes them to a registry.
func Push(ctx context.Context, host string, list []Named, r ociimage.Registry) error {
	for _, n := range list {
		built, err := n.Image.Build()
		if err != nil {
			return fmt.Errorf("image %s: %w", n.Name, err)
		}
		if err := ociimage.Push(ctx, host+"/"+n.Name, built, r); err != nil {
			return err
		}
	}
	return nil
}
