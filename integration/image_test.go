package integration

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Every format unpacks to the same kind of root file system.
func TestImageFormats(t *testing.T) {
	n := newNode(t, testkit.Options{})
	p := n.runPod(nil)
	for _, tc := range []struct{ image, script, want string }{
		{"busybox", "cat /etc/passwd | head -n 1", "root:x:0:0:root:/root:/bin/sh\n"},
		{"docker", "cat /etc/passwd | head -n 1", "root:x:0:0:root:/root:/bin/sh\n"},
		{"zstd", "cat /etc/zstd /etc/plain", "zstd\nplain\n"},
		{"whiteout", "ls /opt/keep /opt/opaque", "/opt/keep:\nstays\n\n/opt/opaque:\nnew\n"},
		{"repeated", "cat /etc/again", "again\n"},
		{"user", "id -un; pwd; echo $FROM_IMAGE", "www-data\n/var/www\nyes\n"},
	} {
		t.Run(tc.image, func(t *testing.T) {
			ref := n.pull(tc.image)
			conf := shell(tc.image, tc.script)
			conf.Image.Image = ref
			c := p.run(conf)
			if s := c.wait(); s.GetExitCode() != 0 {
				t.Errorf("exit code %d", s.GetExitCode())
			}
			eventually(t, "the output "+tc.want, func() bool { return c.output("stdout") == tc.want })
		})
	}
	p.remove()
}

// An image goes, with all its layers, when nothing needs it, and not before.
func TestRemoveImage(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.warm()
	check := n.noLeaks()
	ref := n.pull("whiteout")
	p := n.runPod(nil)
	conf := shell("main", forever)
	conf.Image.Image = ref
	c := p.run(conf)
	_, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
	if out, code := c.exec("ls", "/opt/keep"); out != "stays\n" || code != 0 {
		t.Errorf("after RemoveImage (%v) of a used image: %q, %d", err, out, code)
	}
	p.remove()
	for range 2 { // the second time there is nothing to do
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
			t.Error(err)
		}
	}
	l, err := n.Images.ListImages(n.ctx(), &cri.ListImagesRequest{})
	if err != nil || len(l.GetImages()) != 0 {
		t.Errorf("images: %v, %v", l.GetImages(), err)
	}
	check()
}

// An image that is removed under a container goes, with all its layers, when the
// container does: no one has to ask again.
func TestRemoveImageInUse(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.warm()
	check := n.noLeaks()
	for _, name := range []string{"whiteout", "repeated"} {
		p := n.runPod(nil)
		conf := shell("main", forever)
		conf.Image.Image = n.pull(name)
		c := p.run(conf)
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: conf.Image}); err != nil {
			t.Fatal(err)
		}
		l, err := n.Images.ListImages(n.ctx(), &cri.ListImagesRequest{})
		if err != nil || len(l.GetImages()) != 0 {
			t.Errorf("images: %v, %v", l.GetImages(), err)
		}
		if out, code := c.exec("echo", "still there"); out != "still there\n" || code != 0 {
			t.Errorf("exec after the image has gone: %q, %d", out, code)
		}
		c.remove()
		p.remove()
	}
	check()
}

// By tag, by digest, by id: one image.
func TestImageNames(t *testing.T) {
	n := newNode(t, testkit.Options{})
	ref := n.pull("busybox")
	status := func(name string) *cri.Image {
		r, err := n.Images.ImageStatus(n.ctx(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetImage()
	}
	img := status(ref)
	if img == nil || len(img.GetRepoTags()) != 1 || len(img.GetRepoDigests()) != 1 || img.GetSize() == 0 {
		t.Fatalf("image %v", img)
	}
	for _, name := range []string{img.GetId(), strings.TrimPrefix(img.GetId(), "sha256:"), img.GetRepoDigests()[0]} {
		if got := status(name); got.GetId() != img.GetId() {
			t.Errorf("status of %s: %v", name, got)
		}
	}
	if got := status(registry.Addr + "/test/none:1"); got != nil {
		t.Errorf("status of an unknown image: %v", got)
	}
	if _, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: img.GetRepoDigests()[0]}}); err != nil {
		t.Error(err)
	}
	fs, err := n.Images.ImageFsInfo(n.ctx(), &cri.ImageFsInfoRequest{})
	if err != nil || len(fs.GetImageFilesystems()) == 0 || fs.GetImageFilesystems()[0].GetUsedBytes().GetValue() == 0 {
		t.Errorf("file system info: %v, %v", fs, err)
	}
}

// Many pulls of one image at once are one pull.
func TestPullTogether(t *testing.T) {
	n := newNode(t, testkit.Options{})
	var wg sync.WaitGroup
	refs := make([]string, 8)
	for i := range refs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			defer cancel()
			r, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: testRef("web")}})
			if err != nil {
				t.Error(err)
			}
			refs[i] = r.GetImageRef()
		})
	}
	wg.Wait()
	for _, r := range refs {
		if r == "" || r != refs[0] {
			t.Errorf("image refs %q", refs)
			break
		}
	}
}

// What images are said to take is what their files do, to the byte: blobs, layers with their
// records, and their copies. The root is a tmpfs: others may take more for a file once they have
// written it to a disk.
func TestImageUsage(t *testing.T) {
	n := newNode(t, testkit.Options{
		RootSize: "400m",
		Config:   "[image]\nkeep_blobs = true\n\n[runtime.handler.copied]\nruntime = \"coracle\"\nsnapshotter = \"native\"\n",
	})
	compare := func(when string) usage {
		t.Helper()
		said, is := n.imageUsage(), n.imageFiles()
		if said != is {
			t.Errorf("%s: said to take %+v, take %+v", when, said, is)
		}
		return said
	}
	if u := compare("before any"); u != (usage{}) {
		t.Errorf("nothing takes %+v", u)
	}
	n.pull("busybox")
	plain := compare("one image")
	copied := func(name string) {
		if _, err := n.Images.PullImage(n.ctx(),
			&cri.PullImageRequest{Image: &cri.ImageSpec{Image: testRef(name), RuntimeHandler: "copied"}}); err != nil {
			t.Fatal(err)
		}
	}
	copied("busybox")
	one := compare("with copies of its layers")
	n.pull("whiteout")
	copied("repeated")
	if u := compare("three"); plain.bytes >= one.bytes || one.bytes >= u.bytes {
		t.Errorf("one takes %+v, with copies %+v, three %+v", plain, one, u)
	}
	p := n.runPod(nil)
	p.run(shell("main", "echo mine >/file; "+forever))
	compare("with a container")
	killDaemon(n)
	n.ready()
	compare("started again")
	remove := func(name string) {
		if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef(name)}}); err != nil {
			t.Fatal(err)
		}
	}
	remove("whiteout")
	remove("repeated")
	if u := compare("one again"); u != one {
		t.Errorf("one took %+v, and takes %+v", one, u)
	}
	p.remove()
	remove("busybox")
	if u := compare("after all"); u != (usage{}) {
		t.Errorf("nothing takes %+v", u)
	}
}

// usage is what files take.
type usage struct{ bytes, inodes uint64 }

// imageUsage is what CRI says of images.
func (n *node) imageUsage() usage {
	n.t.Helper()
	info, err := n.Images.ImageFsInfo(n.ctx(), &cri.ImageFsInfoRequest{})
	if err != nil || len(info.GetImageFilesystems()) != 1 {
		n.t.Fatalf("%v, %v", info, err)
	}
	u := info.GetImageFilesystems()[0]
	return usage{u.GetUsedBytes().GetValue(), u.GetInodesUsed().GetValue()}
}

// imageFiles counts what they have, as du(1) does: files with several names once.
func (n *node) imageFiles() (u usage) {
	n.t.Helper()
	seen := map[uint64]bool{}
	count := func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			u.bytes, u.inodes = u.bytes+uint64(st.Blocks)*512, u.inodes+1
		}
		return nil
	}
	for _, things := range []string{"images/blobs", "snapshots/layers", "snapshotters/*/layers"} {
		found, err := filepath.Glob(filepath.Join(n.Root, things, "sha256", "*"))
		for _, thing := range found {
			err = errors.Join(err, filepath.WalkDir(thing, count))
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	return u
}
