// Package exitcodes says what the kernel can tell of processes that have ended.
package exitcodes

import (
	"os/exec"
	"testing"

	"github.com/coracle-project/coracle/shim/pidfd"
)

// Kept says whether the kernel knows the exit code of a process that another one has
// reaped (Linux 6.15). If not, the code of a container is unknown that ends after its shim and the
// keeper that started this shim have died.
func Kept(t testing.TB) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x; exit 7")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := pidfd.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_ = in.Close()
	_ = cmd.Wait()
	code, err := pidfd.Wait(f)
	if err != nil || code != 7 && code != pidfd.Unknown {
		t.Fatalf("the code of a process that was reaped: %d, %v", code, err)
	}
	return code == 7
}
