package images

import (
	"io/fs"
	"path/filepath"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// Critest are stand-ins for the images that critest names, under the paths that
// they have at registry.k8s.io, k8s.gcr.io and gcr.io.
func (s Source) Critest() ([]Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	conf := func(change func(*ocispec.ImageConfig)) ociimage.Image {
		c := base.Config
		change(&c)
		return base.Over(c)
	}
	// A web server that passes for nginx: the tests ask for its name, its pid file and
	// a word of the title that nginx gives itself.
	nginx := func(listen string) ociimage.Image {
		return base.Over(ocispec.ImageConfig{
			Cmd: []string{"/usr/sbin/nginx", "-listen", listen, "-pidfile", "/var/run/nginx.pid", "master process"},
			Env: []string{path}, ExposedPorts: map[string]struct{}{"80/tcp": {}},
		}, s.web("usr/sbin/nginx"))
	}
	httpd := base.Over(ocispec.ImageConfig{
		Cmd: []string{"/usr/local/bin/httpd", "-listen", ":80"}, Env: []string{path},
	}, s.web("usr/local/bin/httpd"))
	setuid := base.Over(ocispec.ImageConfig{Cmd: []string{"/usr/local/bin/nnp"}, Env: []string{path}},
		ociimage.Layer{Files: append(ociimage.Dirs("usr/local/bin"),
			ociimage.File{Path: "usr/local/bin/nnp", Mode: fs.ModeSetuid | 0o755, Source: filepath.Join(s.Bin, "setuid")})})
	groups := base.Over(ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{path}, User: "1000"},
		ociimage.Layer{Files: append(ociimage.Dirs("etc", "home"),
			ociimage.File{Path: "home/default-user", Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
			ociimage.File{Path: "etc/passwd", Mode: 0o644, Data: []byte(passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n")},
			ociimage.File{
				Path: "etc/group", Mode: 0o644,
				Data: []byte(group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n"),
			})})
	const cri = "k8s-staging-cri-tools/"
	list := []Named{
		{"pause:3.9", s.pause("3.9")},
		{"pause:3.10", s.pause("3.10")},
		{"e2e-test-images/busybox:1.29-2", base},
		{"e2e-test-images/nginx:1.14-2", nginx(":80")},
		{"e2e-test-images/httpd:2.4.39-4", httpd},
		{"e2e-test-images/nonewprivs:1.3", setuid},
		{cri + "hostnet-nginx-" + runtime.GOARCH + ":latest", nginx(":12003")},
		{cri + "test-image-user-uid:latest", conf(func(c *ocispec.ImageConfig) { c.User = "1002" })},
		{cri + "test-image-user-username:latest", conf(func(c *ocispec.ImageConfig) { c.User = "www-data" })},
		{cri + "test-image-user-uid-group:latest", conf(func(c *ocispec.ImageConfig) { c.User = "1003:1004" })},
		{cri + "test-image-user-username-group:latest", conf(func(c *ocispec.ImageConfig) { c.User = "www-data:1004" })},
		{cri + "test-image-predefined-group:latest", groups},
		{cri + "test-image-digest:latest", Digest()},
	}
	for _, name := range []string{
		"test-image-1:latest", "test-image-2:latest", "test-image-3:latest", "test-image-latest:latest",
		"test-image-tag:test", "test-image-tag:all",
	} {
		list = append(list, Named{cri + name, base.Over(base.Config, oneFile(name).Layers...)})
	}
	for _, tag := range []string{"1", "2", "3"} {
		list = append(list, Named{cri + "test-image-tags:" + tag, base.Over(base.Config, oneFile("test-image-tags").Layers...)})
	}
	return list, nil
}

// Digest is the image that critest pulls by digest. It is made of constants only,
// so that hack/tools.sh can build its digest into critest.
func Digest() ociimage.Image { return oneFile("test-image-digest") }

func oneFile(content string) ociimage.Image {
	return ociimage.Image{
		Layers: []ociimage.Layer{{
			Compression: ociimage.Plain,
			Files:       []ociimage.File{{Path: "name", Mode: 0o644, Data: []byte(content + "\n")}},
		}},
		Config: ocispec.ImageConfig{Cmd: []string{"/name"}},
	}
}
