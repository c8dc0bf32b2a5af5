package integration

import (
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// Pods run on every snapshot driver, coracled can be killed under them, and nothing is left.
func TestSnapshotDrivers(t *testing.T) {
	for _, driver := range []string{"overlay", "erofs", "native"} {
		t.Run(driver, func(t *testing.T) {
			n := newNode(t, testkit.Options{Config: "[snapshot]\ndriver = \"" + driver + "\"\n"})
			n.warm()
			check := n.noLeaks()
			p := n.runPod(nil)
			conf := shell("main", "ls /opt/keep >/new && cat /new && "+forever)
			conf.Image.Image = n.pull("whiteout")
			c := p.run(conf)
			eventually(t, "the output", func() bool { return c.output("stdout") == "stays\n" })
			if err := n.Terminate(); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
			if out, code := c.exec("cat", "/new"); out != "stays\n" || code != 0 {
				t.Errorf("after a restart: %q, %d", out, code)
			}
			p.remove()
			if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: conf.Image}); err != nil {
				t.Error(err)
			}
			check()
		})
	}
}
