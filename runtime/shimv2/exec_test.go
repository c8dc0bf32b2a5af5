package shimv2

import (
	"os"
	"testing"

	"github.com/coracle-project/coracle/runtime/internal/base"
)

// TestProcessesWithOnePid: shims of virtual machines give the machine's pid for all processes; each
// is another process for us.
func TestProcessesWithOnePid(t *testing.T) {
	store, err := base.NewStore(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &container{Container: base.Container{Store: store, Rec: &base.Record{ID: "x", Init: base.Process{Pid: 100}}}}
	if err := os.Mkdir(c.Dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	seen := map[int]string{100: ""}
	for _, id := range []string{"a", "b", "c"} {
		for _, given := range []int{100, 200} {
			pid, err := c.noteExec(given, id)
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := seen[pid]; twice {
				t.Errorf("%d twice", pid)
			}
			seen[pid] = id
			if err := c.with(pid, func(got string) error {
				if got != id {
					t.Errorf("%d is %q, want %q", pid, got, id)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	}
	if seen[200] != "a" {
		t.Errorf("a shim's own pid is not used: %v", seen)
	}
}
