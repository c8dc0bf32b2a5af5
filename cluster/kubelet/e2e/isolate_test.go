package e2e

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coracle-project/coracle/cluster/integration/isolate"
)

// TestMain runs the tests in namespaces of their own: pods' networks, mounts and processes neither
// meet the machine's nor outlive the tests.
func TestMain(m *testing.M) {
	os.Exit(isolate.Run(func() int {
		// A fake API's watch panics when more events than this have not been read yet.
		watch.DefaultChanSize = 1 << 14
		// Runtimes keep namespaces and sockets there, whatever their configuration says.
		if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			fmt.Fprintln(os.Stderr, "kubelet e2e: mount /run:", err)
			return 1
		}
		return m.Run()
	}))
}
