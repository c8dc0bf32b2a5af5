package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestChroot makes containers with the engine in a chroot. Their mount namespace's root has to be
// theirs, not the host's, for it is where setns(2) leads: the engine for a further process, and a
// container that may do that.
func TestChroot(t *testing.T) {
	for name, fill := range map[string]string{
		"a mount":     `mount --rbind / "$0"`,
		"a directory": `for f in /*; do if [ -L "$f" ]; then cp -P "$f" "$0"; elif [ -d "$f" ]; then mkdir "$0$f"; mount --rbind "$f" "$0$f"; fi; done`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			id := fmt.Sprintf("chroot-%d", os.Getpid())
			// It waits for the other one, and then looks into its own namespace again.
			spec := runtimetest.Spec(id, "/bin/sh", "-c", "read x; busybox nsenter -t 1 -m ls /")
			all := &spec.Process.Capabilities
			for _, set := range []*[]string{&(*all).Bounding, &(*all).Effective, &(*all).Permitted} {
				*set = append(*set, "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE")
			}
			process := *spec.Process
			process.Args = []string{"/bin/sh", "-c", "ls /; grep -c ' / ' /proc/mounts"}
			o := order{State: filepath.Join(dir, "state"), Bundle: runtimetest.Bundle(t), ID: id, Spec: spec, Exec: &process}
			said, err := o.run(t, "unshare", "--mount", "--propagation", "private", "sh", "-ec", fill+`; exec chroot "$0" "$@"`, t.TempDir())
			const root = "bin\ndev\nproc\nsys\ntmp\n"
			if want := root + "1\n" + root[:len(root)-1]; err != nil || said != want {
				t.Errorf("%v, %q", err, said)
			}
		})
	}
}
