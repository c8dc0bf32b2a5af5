package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// An image's files in another image's container: all of them, and a part.
func TestImageVolume(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	n.warm()
	n.pull("busybox")
	check := n.noLeaks()
	p := n.runPod(nil)
	conf := shell("main",
		`ls /image/bin/busybox /part/busybox && ! touch /image/x 2>/tmp/why && cat /tmp/why && mount | grep ' /part '; `+forever)
	conf.Mounts = []*cri.Mount{
		{ContainerPath: "/image", Image: &cri.ImageSpec{Image: testRef("busybox")}},
		{
			ContainerPath: "/part", Image: &cri.ImageSpec{Image: testRef("busybox")}, ImageSubPath: "bin",
			MountOptions: []string{"noexec", "nosuid"},
		},
	}
	c := p.run(conf)
	eventually(t, "the container looks at its volumes", func() bool { return strings.Contains(c.output(""), " /part ") })
	out := c.output("")
	for _, want := range []string{"/image/bin/busybox", "/part/busybox", "Read-only file system", "noexec", "nosuid"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %q", want, out)
		}
	}
	mounts := c.status().GetMounts()
	if len(mounts) != 2 || mounts[0].GetImage().GetImageRef() == "" || !mounts[0].GetReadonly() {
		t.Errorf("status: %v", mounts)
	}
	p.remove()
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}}); err != nil {
		t.Fatal(err)
	}
	check()
}

// A device that a plugin described.
func TestCDIDevice(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, testkit.Options{Config: "[runtime]\ncdi_spec_dirs = [\"" + dir + "\"]\n"})
	n.pull("busybox")
	spec := `{"cdiVersion": "0.6.0", "kind": "coracle.example/null",
		"devices": [{"name": "0", "containerEdits": {"env": ["DEVICE=0"], "deviceNodes": [{"path": "/dev/from-cdi", "hostPath": "/dev/null"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "null.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	p := n.runPod(nil)
	conf := shell("main", `echo x > /dev/from-cdi && echo "device $DEVICE: $(stat -c %F /dev/from-cdi)"`)
	conf.CDIDevices = []*cri.CDIDevice{{Name: "coracle.example/null=0"}}
	c := p.run(conf)
	c.wait()
	if got := c.output(""); got != "device 0: character special file\n" {
		t.Errorf("output %q", got)
	}
	conf = shell("other", "true")
	conf.CDIDevices = []*cri.CDIDevice{{Name: "coracle.example/null=1"}}
	_, err := n.CreateContainer(n.ctx(), &cri.CreateContainerRequest{PodSandboxId: p.id, Config: conf, SandboxConfig: p.config})
	wantCode(t, "container with an unknown device", err, "FailedPrecondition")
	p.remove()
}

// The limits that the operator gives to all containers.
func TestUlimits(t *testing.T) {
	n := newNode(t, testkit.Options{Config: "[runtime]\nulimits = [\"nofile=123:456\", \"core=0\"]\n"})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", "ulimit -Sn; ulimit -Hn; ulimit -c"))
	c.wait()
	if got := c.output(""); got != "123\n456\n0\n" {
		t.Errorf("limits %q", got)
	}
	p.remove()
}
