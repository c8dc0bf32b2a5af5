package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A pod with hostUsers: false has ids of its own; its volumes' files have those that they have in
// the container. It keeps them over a restart of the kubelet, and what it has another pod does not
// have, until it is gone.
func TestUserNamespaces(t *testing.T) {
	n := newNode(t, nil)
	start := func(name string) *v1.Pod {
		p := n.pod(name, container("c", "append", "/shared/file", "x", ",", "sleep"))
		p.Spec.HostUsers = ptr.To(false)
		p = n.create(emptyDir(p))
		n.until(p, "ready", ready)
		return p
	}
	ids := func(p *v1.Pod) (first int64) {
		t.Helper()
		var inside, length int64
		said := n.exec(p, "c", "cat", "/proc/self/uid_map")
		if _, err := fmt.Sscan(said, &inside, &first, &length); err != nil || inside != 0 || first == 0 || first%65536 != 0 || length != 65536 {
			t.Errorf("the pod's ids are %q", said)
		}
		return first
	}
	one, two := start("one"), start("two")
	had := ids(two)
	if ids(one) == had {
		t.Errorf("two pods have the same ids, from %d on", had)
	}
	file := filepath.Join(n.opts.RootDir, "pods", string(one.UID), "volumes", "kubernetes.io~empty-dir", "shared", "file")
	info, err := os.Stat(file)
	for deadline := time.Now().Add(patience); errors.Is(err, fs.ErrNotExist) && time.Now().Before(deadline); info, err = os.Stat(file) {
		runtime.Gosched() // it is what the container does first
	}
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the file that root has written: %+v, %v", info, err)
	}
	n.stop()
	n.start()
	n.delete(one, 5)
	n.until(one, "gone", gone)
	n.untilNoSandbox(one)
	if got := ids(start("three")); got == had {
		t.Errorf("a third pod has the ids of the second, from %d on", got)
	}
	if got := ids(two); got != had {
		t.Errorf("the ids are those from %d on, were those from %d on before the restart", got, had)
	}
}
