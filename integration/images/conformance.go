package images

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// agnhostPrograms are what the suite calls in agnhost's image alongside agnhost.
var agnhostPrograms = []string{"bash", "curl", "dig", "getent", "ip", "ipcs", "iperf", "nc", "ss"}

// Conformance are stand-ins for the images of Kubernetes' conformance suite, at the names and
// versions of k8s.io/kubernetes/test/utils/image 1.36.3. The suite's own programs are built by
// hack/conformance/build.sh into Bin's neighbour conformance; tools in them are this machine's.
func (s Source) Conformance() ([]Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(filepath.Dir(s.Bin), "conformance")
	host, err := s.agnhost(base, dir)
	if err != nil {
		return nil, err
	}
	nginx := base.Over(ocispec.ImageConfig{
		Cmd: []string{"/usr/sbin/nginx", "-listen", ":80", "-pidfile", "/var/run/nginx.pid", "master process"},
		Env: []string{path}, ExposedPorts: map[string]struct{}{"80/tcp": {}},
	}, s.web("usr/sbin/nginx"))
	setuid := base.Over(ocispec.ImageConfig{Cmd: []string{"/usr/local/bin/nnp"}, Env: []string{path}},
		ociimage.Layer{Files: append(ociimage.Dirs("usr/local/bin"),
			ociimage.File{Path: "usr/local/bin/nnp", Mode: fs.ModeSetuid | 0o755, Source: filepath.Join(s.Bin, "setuid")})})
	user := base.Config
	user.User = "1234"
	api := base.Over(ocispec.ImageConfig{Entrypoint: []string{"/sample-apiserver"}, Env: []string{path}},
		ociimage.Layer{Files: []ociimage.File{{Path: "sample-apiserver", Mode: 0o755, Source: filepath.Join(dir, "sample-apiserver")}}})
	etcd := base.Over(ocispec.ImageConfig{Env: []string{path}}, ociimage.Layer{Files: append(ociimage.Dirs("usr/local/bin"),
		ociimage.File{Path: "usr/local/bin/etcd", Mode: 0o755, Source: filepath.Join(dir, "etcd")})})
	const stray = "regression-issue-74839" // sends segments outside the window
	strays := base.Over(ocispec.ImageConfig{Entrypoint: []string{"/" + stray}, Env: []string{path}},
		ociimage.Layer{Files: []ociimage.File{{Path: stray, Mode: 0o755, Source: filepath.Join(dir, stray)}}})
	const e2e = "e2e-test-images/"
	list := []Named{
		{"pause:3.10.2", s.pause("3.10.2")},
		{e2e + "busybox:1.29-2", base},
		{e2e + "busybox:1.37.0-1", base},
		{e2e + "perl:5.26", base}, // any program that computes for a moment
		{e2e + "nginx:1.14-2", nginx},
		{e2e + "nginx:1.15-4", nginx},
		{e2e + "nginx:1.27-0", nginx},
		{e2e + "nonewprivs:1.4", setuid},
		{e2e + "nonroot:1.5", base.Over(user)},
		{e2e + "agnhost:2.55", host},
		{e2e + "agnhost:2.63.0", host},
		{e2e + "sample-apiserver:1.29.2", api},
		{e2e + stray + ":1.4", strays},
		{"etcd:3.6.8-0", etcd},
		{e2e + "glibc-dns-testing:2.0.0", host.Over(ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{path}})},
	}
	for _, ship := range []string{"kitten", "nautilus"} {
		page := ociimage.File{Path: "data.json", Mode: 0o644, Data: fmt.Appendf(nil, "{\n\"image\":\"%s.jpg\"\n}\n", ship)}
		config := host.Config
		config.Cmd = []string{"test-webserver"}
		list = append(list, Named{e2e + ship + ":1.8", host.Over(config, ociimage.Layer{Files: []ociimage.File{page}})})
	}
	// Each name has an image id of its own: with two names for one, a runtime may report either.
	for i := range list {
		config := list[i].Image.Config
		config.Labels = map[string]string{"name": list[i].Name}
		list[i].Image.Config = config
	}
	return list, nil
}

// Policy are the images of network policies' tests: Kubernetes' own, those of ClusterNetworkPolicy,
// and those of cyclonus with its program that probes. What is in them is built by
// hack/policy/build.sh into Bin's neighbour policy.
func (s Source) Policy() ([]Named, error) {
	base, err := s.BusyboxImage()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(filepath.Dir(s.Bin), "policy")
	host := base.Over(ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Env: []string{path}},
		ociimage.Layer{Files: []ociimage.File{{Path: "agnhost", Mode: 0o755, Source: filepath.Join(dir, "agnhost")}}})
	shell, err := hostPrograms([]string{"bash"})
	if err != nil {
		return nil, err
	}
	houses := host.Over(ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{path}}, shell,
		ociimage.Layer{Files: []ociimage.File{{Path: "bin/bash", Mode: 0o777, Symlink: "/usr/bin/bash"}}})
	worker := host.Over(ocispec.ImageConfig{Entrypoint: []string{"/worker"}, Env: []string{path}},
		ociimage.Layer{Files: []ociimage.File{{Path: "worker", Mode: 0o755, Source: filepath.Join(dir, "worker")}}})
	return []Named{
		{"e2e-test-images/agnhost:2.63.0", host},
		{"e2e-test-images/agnhost:2.45", houses},
		{"mfenwick100/cyclonus-worker:latest", worker},
	}, nil
}

// agnhost is the image of the suite's own program, with what its Dockerfile adds to it.
func (s Source) agnhost(base ociimage.Image, dir string) (ociimage.Image, error) {
	registry, err := fakeRegistry(Named{"pause", s.pause("3.10.2")})
	if err != nil {
		return ociimage.Image{}, err
	}
	programs, err := hostPrograms(agnhostPrograms)
	if err != nil {
		return ociimage.Image{}, err
	}
	own := ociimage.Layer{Files: append(ociimage.Dirs("etc", "home", "uploads"),
		ociimage.File{Path: "agnhost", Mode: 0o755, Source: filepath.Join(dir, "agnhost")},
		ociimage.File{Path: "agnhost-2", Mode: 0o777, Symlink: "agnhost"},
		ociimage.File{Path: "localhost.crt", Mode: 0o644, Source: filepath.Join(dir, "localhost.crt")},
		ociimage.File{Path: "localhost.key", Mode: 0o644, Source: filepath.Join(dir, "localhost.key")},
		ociimage.File{Path: "home/user-defined-in-image", Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
		ociimage.File{
			Path: "etc/passwd", Mode: 0o644,
			Data: []byte(passwd + "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"),
		},
		ociimage.File{
			Path: "etc/group", Mode: 0o644,
			Data: []byte(group + "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"),
		},
		ociimage.File{Path: "etc/nsswitch.conf", Mode: 0o644, Data: []byte("hosts: files dns\n")},
		// The test of image volumes looks for a line of it.
		ociimage.File{Path: "etc/os-release", Mode: 0o644, Data: []byte("NAME=\"Alpine Linux\"\nID=alpine\n")},
	)}
	ports := map[string]struct{}{}
	for _, p := range []string{"80", "8080", "8081", "9376", "5000"} {
		ports[p+"/tcp"] = struct{}{}
	}
	return base.Over(ocispec.ImageConfig{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{path}, ExposedPorts: ports},
		programs, own, registry), nil
}

// fakeRegistry is what agnhost's fake registry serves: an image as the files of the CNCF
// distribution registry.
func fakeRegistry(image Named) (ociimage.Layer, error) {
	b, err := image.Image.Build()
	if err != nil {
		return ociimage.Layer{}, err
	}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: "application/vnd.docker.distribution.manifest.list.v2+json",
		Manifests: []ocispec.Descriptor{{
			MediaType: b.Manifest.MediaType, Digest: b.Manifest.Digest, Size: b.Manifest.Size,
			Platform: &ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		}},
	})
	if err != nil {
		return ociimage.Layer{}, err
	}
	top := "var/registry/" + image.Name
	files := ociimage.Dirs(top+"/manifests", top+"/blobs")
	put := func(kind string, data []byte) string {
		hex := digest.FromBytes(data).Encoded()
		parent := top + "/" + kind + "/sha256/" + hex[:2] + "/" + hex
		files = append(files, ociimage.Dirs(parent)...)
		files = append(files, ociimage.File{Path: parent + "/data", Mode: 0o644, Data: data})
		return "sha256:" + hex
	}
	for id, blob := range b.Blobs {
		kind := "blobs"
		if id == b.Manifest.Digest {
			kind = "manifests"
		}
		put(kind, blob)
	}
	files = append(files, ociimage.File{Path: top + "/manifests/testing", Mode: 0o644, Data: []byte(put("manifests", index) + "\n")})
	return ociimage.Layer{Files: files}, nil
}
