package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// A container's standard streams are FIFOs of the host's, which it may chmod and chown as it may
// its own files. No other user of the host gets to them by that, its streams go on whatever is
// killed, and nothing else of the host's changes.
func TestAttackFIFOs(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	p := n.runPod(nil)
	c := p.run(shell("main", trap+`
		chown 12345:12345 /proc/self/fd/1 /proc/self/fd/2 && chmod 0 /proc/self/fd/1 && chmod 4777 /proc/self/fd/2 && echo changed
		while ! [ -e /go ]; do sleep 0.01; done; echo later; echo later >&2; `+forever))
	eventually(t, "the container has changed its streams", func() bool { return strings.Contains(c.output(""), "changed") })
	changed, open := 0, 0
	err := filepath.WalkDir(n.State, func(path string, e fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "/rootfs/") {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		switch {
		case st.Uid != 12345:
		case e.Type() != fs.ModeNamedPipe || !strings.Contains(path, c.id):
			t.Errorf("%s belongs to the container", path)
		default:
			changed++
			if !rootOnly(filepath.Dir(path)) {
				open++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if changed != 2 || open != 0 {
		t.Errorf("%d FIFOs changed, %d of which other users of the host can reach", changed, open)
	}
	for _, v := range victims {
		v.kill(n)
		n.ready()
	}
	if _, code := c.exec("touch", "/go"); code != 0 {
		t.Errorf("exec ended with %d", code)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		eventually(t, stream+" goes on", func() bool { return strings.Contains(c.output(stream), "later") })
	}
	p.remove()
}

// rootOnly says whether other users of the host cannot get to a directory.
func rootOnly(dir string) bool {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o077 == 0 {
			return true
		}
	}
	return false
}
