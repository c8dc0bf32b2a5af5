package integration

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/faultproxy"
	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// lazyRig is a registry behind a proxy, with an image of estargz in it: busybox, and much noise
// that nothing needs to start. What is fetched behind (not what is read) is held until release.
type lazyRig struct {
	*faultproxy.Proxy
	image ociimage.Image
	built ociimage.Built
	ref   string
	// settings are more lines of section image.
	settings string
	release  func()
	held     chan struct{}
}

// noises are files of noise; the first are read in tests before all is there.
const (
	noises     = 6
	noiseBytes = 2 << 20
)

func newLazyRig(t *testing.T) *lazyRig {
	t.Helper()
	web, err := testkit.FindBin("test", "web")
	if err != nil {
		t.Fatal(err)
	}
	src, err := images.NewSource(binDir(web))
	if err != nil {
		t.Fatal(err)
	}
	r := &lazyRig{held: make(chan struct{})}
	r.release = sync.OnceFunc(func() { close(r.held) })
	if r.image, err = src.BusyboxImage(); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	for i := range noises {
		noise := make([]byte, noiseBytes)
		_, _ = random.Read(noise)
		r.image.Layers[0].Files = append(r.image.Layers[0].Files, ociimage.File{Path: fmt.Sprintf("noise%d", i), Mode: 0o644, Data: noise})
	}
	r.image.Layers[0].Compression = ociimage.Estargz
	cert, key, _ := selfSigned(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	r.Proxy = faultproxy.Start(t, pair, "http://"+registry.Addr, nil)
	r.spoil(nil)
	t.Cleanup(r.release) // before the proxy waits for its requests
	r.push(t)
	return r
}

// push makes the image and pushes it.
func (r *lazyRig) push(t *testing.T) {
	t.Helper()
	var err error
	if r.built, err = r.image.Build(); err != nil {
		t.Fatal(err)
	}
	r.upload(t)
}

// upload pushes what was made.
func (r *lazyRig) upload(t *testing.T) {
	t.Helper()
	name := "/lazy/" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())) + ":1"
	if err := ociimage.Push(context.Background(), registry.Addr+name, r.built, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	r.ref = r.Host() + name
}

// spoil says what the proxy does, besides delaying what is fetched in the background: that starts
// at the blob's first byte, where no file is.
func (r *lazyRig) spoil(fault func(*http.Request) faultproxy.Fault) {
	r.Set(func(req *http.Request) faultproxy.Fault {
		var f faultproxy.Fault
		if fault != nil {
			f = fault(req)
		}
		if strings.HasPrefix(req.Header.Get("Range"), "bytes=0-") {
			f.Hold = r.held
		}
		return f
	})
}

func isBlob(req *http.Request) bool { return strings.Contains(req.URL.Path, "/blobs/") }

// blob is the layer's.
func (r *lazyRig) blob() ocispec.Descriptor { return r.built.Order[0] }

// node starts a daemon that pulls lazily through the proxy.
func (r *lazyRig) node(t *testing.T, o testkit.Options) *node {
	t.Helper()
	o.Config += fmt.Sprintf(
		"\n[image]\nlazy_read_timeout = \"10s\"\n"+r.settings+"[image.registry.%q]\ninsecure_skip_verify = true\nlazy = true\n", r.Host(),
	)
	return newNode(t, o)
}

func (r *lazyRig) pull(n *node) {
	n.t.Helper()
	if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: r.ref}}); err != nil {
		n.t.Fatal(err)
	}
}

func (r *lazyRig) remove(n *node) {
	n.t.Helper()
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: r.ref}}); err != nil {
		n.t.Fatal(err)
	}
}

// run starts a container of the rig's image that does nothing.
func (r *lazyRig) run(p *pod) *container {
	p.n.t.Helper()
	conf := shell("app", forever)
	conf.Image = &cri.ImageSpec{Image: r.ref}
	return p.run(conf)
}

// start pulls and runs it.
func (r *lazyRig) start(n *node) (*pod, *container) {
	n.t.Helper()
	r.pull(n)
	p := n.runPod(nil)
	return p, r.run(p)
}

// reads says whether a container can read one of the files of noise, and that it is right.
func (r *lazyRig) reads(c *container, file int) bool {
	c.p.n.t.Helper()
	name := fmt.Sprintf("noise%d", file)
	out, code := c.exec("sha256sum", "/"+name)
	if code != 0 {
		return false
	}
	i := slices.IndexFunc(r.image.Layers[0].Files, func(f ociimage.File) bool { return f.Path == name })
	if want := fmt.Sprintf("%x  /%s\n", sha256.Sum256(r.image.Layers[0].Files[i].Data), name); out != want {
		c.p.n.t.Errorf("the container reads %q, want %q", out, want)
	}
	return true
}

// lazyDirs are the lazy layers that the daemon has, whole the ordinary ones.
func lazyDirs(n *node) []string  { return glob(n, "lazy", "*") }
func wholeDirs(n *node) []string { return glob(n, "layers", "sha256", "*") }

func glob(n *node, elem ...string) []string {
	n.t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{n.Root, "snapshots"}, elem...)...))
	if err != nil {
		n.t.Fatal(err)
	}
	return found
}

// landed waits until there is an ordinary layer instead of the lazy one.
func landed(n *node) {
	n.t.Helper()
	within(n.t, time.Minute, "the lazy layer is an ordinary one", func() bool { return len(lazyDirs(n)) == 0 && len(wholeDirs(n)) == 1 })
}

// warm has what is made once: besides a pod's things, the process that shows layers.
func (r *lazyRig) warm(n *node) {
	n.t.Helper()
	n.warm()
	r.pull(n)
	r.remove(n)
}

func TestLazyStartsBeforeItIsThere(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{})
	r.warm(n)
	check := n.noLeaks()
	before := r.Sent()
	p, c := r.start(n)
	if out, code := c.exec("echo", "hello"); code != 0 || out != "hello\n" {
		t.Errorf("exec: %d, %q", code, out)
	}
	if sent, all := r.Sent()-before, r.blob().Size; sent > all/3 {
		t.Errorf("the registry has sent %d bytes, the blob has %d", sent, all)
	}
	if len(n.Lazies()) != 1 || len(lazyDirs(n)) != 1 || len(wholeDirs(n)) != 0 {
		t.Errorf("processes %v, lazy layers %v, whole ones %v", n.Lazies(), lazyDirs(n), wholeDirs(n))
	}
	if !r.reads(c, 0) {
		t.Error("a file that is not there yet cannot be read")
	}
	r.release()
	landed(n)
	// Now nothing depends on the registry any more, in the old container neither.
	r.spoil(func(*http.Request) faultproxy.Fault { return faultproxy.Fault{Reset: true} })
	if !r.reads(c, 1) {
		t.Error("the lazy root cannot be read from the unpacked layer")
	}
	other := n.runPod(nil)
	if !r.reads(r.run(other), 2) {
		t.Error("an ordinary root cannot be read")
	}
	p.remove()
	other.remove()
	r.remove(n)
	check()
}

// What is shown is, file by file, what unpacking makes of the same layer.
func TestLazyIsWhatUnpackingMakes(t *testing.T) {
	r := newLazyRig(t)
	r.image.Layers[0].Files = append(r.image.Layers[0].Files, oddFiles()...)
	r.push(t)
	n := r.node(t, testkit.Options{})
	p, _ := r.start(n)
	lazily := layerFiles(t, filepath.Join(lazyDirs(n)[0], "fs"))
	r.release()
	landed(n)
	unpacked := layerFiles(t, filepath.Join(wholeDirs(n)[0], "fs"))
	for _, name := range slices.Sorted(maps.Keys(unpacked)) {
		if lazily[name] != unpacked[name] {
			t.Errorf("%q is shown as %q, unpacked as %q", name, lazily[name], unpacked[name])
		}
		delete(lazily, name)
	}
	for name, is := range lazily {
		t.Errorf("%q, %s, is shown and not in the unpacked layer", name, is)
	}
	p.remove()
}

// oddFiles has what layers have besides ordinary files.
func oddFiles() []ociimage.File {
	return append(
		ociimage.Dirs("odd/opaque", "odd/both/in"),
		ociimage.File{Path: "odd/empty", Mode: 0o600},
		ociimage.File{Path: "odd/owned", Mode: fs.ModeSetuid | fs.ModeSetgid | 0o711, UID: 1000, GID: 2000, Data: []byte("x")},
		ociimage.File{Path: "odd/tagged", Mode: 0o644, Data: []byte("x"), Xattrs: map[string]string{
			"user.kept": "yes", "trusted.overlay.opaque": "y", "security.selinux": "no",
			"security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		}},
		ociimage.File{Path: "odd/hard", Hardlink: "odd/owned"},
		ociimage.File{Path: "odd/link", Symlink: "/nowhere/at all"},
		ociimage.File{Path: "odd/.wh.hidden", Mode: 0o644},
		ociimage.File{Path: "odd/opaque/.wh..wh..opq", Mode: 0o644},
		ociimage.File{Path: "odd/opaque/new", Mode: 0o644, Data: []byte("new")},
		ociimage.File{Path: "odd/.wh.both", Mode: 0o644},
		ociimage.File{Path: "odd/zeros", Mode: 0o644, Data: make([]byte, 300<<10)},
	)
}

// layerFiles describes all that is in a layer, markers too. A whiteout's time is that of its
// making.
func layerFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := describe(t, dir)
	for name, is := range all {
		if strings.HasSuffix(is, "device 0") && strings.HasPrefix(is, "20000 ") {
			all[name] = "whiteout"
		}
		value := make([]byte, 8)
		if n, err := unix.Lgetxattr(filepath.Join(dir, name), "trusted.overlay.opaque", value); err == nil {
			all[name] += ", opaque " + string(value[:n])
		}
	}
	return all
}

// What cannot be shown lazily, or is not to be, is pulled.
func TestLazyFallsBack(t *testing.T) {
	annotations := func(r *lazyRig, t *testing.T, change func(map[string]string)) {
		t.Helper()
		r.changeManifest(t, func(m *ocispec.Manifest) { change(m.Layers[0].Annotations) })
	}
	const toc = "containerd.io/snapshot/stargz/toc.digest"
	for name, change := range map[string]func(*lazyRig, *testing.T) testkit.Options{
		"no digest of the table": func(r *lazyRig, t *testing.T) testkit.Options {
			annotations(r, t, func(a map[string]string) { delete(a, toc) })
			return testkit.Options{}
		},
		"another table": func(r *lazyRig, t *testing.T) testkit.Options {
			annotations(r, t, func(a map[string]string) { a[toc] = r.blob().Digest.String() })
			return testkit.Options{}
		},
		"no table": func(r *lazyRig, t *testing.T) testkit.Options {
			d := r.blob().Digest.String()
			r.image.Layers[0].Compression = ociimage.Gzip
			r.push(t)
			r.changeManifest(t, func(m *ocispec.Manifest) { m.Layers[0].Annotations = map[string]string{toc: d} })
			return testkit.Options{}
		},
		"blobs are kept": func(r *lazyRig, _ *testing.T) testkit.Options {
			r.settings = "keep_blobs = true\n"
			return testkit.Options{}
		},
		"another driver": func(*lazyRig, *testing.T) testkit.Options {
			return testkit.Options{Config: "[snapshot]\ndriver = \"native\"\n"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newLazyRig(t)
			o := change(r, t)
			r.release()
			n := r.node(t, o)
			p, c := r.start(n)
			if len(lazyDirs(n)) != 0 || len(wholeDirs(n)) != 1 {
				t.Errorf("lazy layers %v, whole ones %v", lazyDirs(n), wholeDirs(n))
			}
			if !r.reads(c, 0) {
				t.Error("cannot be read")
			}
			p.remove()
		})
	}
}

// Without the setting nothing is lazy.
func TestLazyIsOffByDefault(t *testing.T) {
	r := newLazyRig(t)
	r.release()
	n := newNode(t, testkit.Options{Config: fmt.Sprintf("[image.registry.%q]\ninsecure_skip_verify = true\n", r.Host())})
	p, c := r.start(n)
	if !r.reads(c, 0) || len(n.Lazies()) != 0 || len(lazyDirs(n)) != 0 {
		t.Errorf("processes %v, lazy layers %v", n.Lazies(), lazyDirs(n))
	}
	p.remove()
}

// Lazy layers are mounted where all layers are that a user namespace's ids are shown of.
func TestLazyUserNamespace(t *testing.T) {
	r := newLazyRig(t)
	n := r.node(t, testkit.Options{})
	r.pull(n)
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userNamespace()
	})
	c := r.run(p)
	if out, code := c.exec("stat", "-c", "%u:%g", "/bin/busybox"); code != 0 || out != "0:0\n" {
		t.Errorf("owner: %d, %q", code, out)
	}
	if !r.reads(c, 0) {
		t.Error("cannot be read")
	}
	p.remove()
}

// changeManifest pushes the image with another manifest.
func (r *lazyRig) changeManifest(t *testing.T, change func(*ocispec.Manifest)) {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(r.built.Blobs[r.built.Manifest.Digest], &m); err != nil {
		t.Fatal(err)
	}
	change(&m)
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	r.built.Order = r.built.Order[:len(r.built.Order)-1]
	r.built.Manifest = r.built.Add(r.built.Manifest.MediaType, data)
	r.upload(t)
}
