package workload

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machineDouble is a Machine with these nodes.
type machineDouble []Node

// newMachine returns a machine with nodes whose sockets can be served. Its first one is at the
// socket that commands ask for by default.
func newMachine(t *testing.T, names ...string) machineDouble {
	t.Helper()
	t.Setenv("CORACLE_ADDRESS", "")
	dir, err := os.MkdirTemp("", "c-") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var m machineDouble
	for _, name := range names {
		m = append(m, Node{name, filepath.Join(dir, name)})
	}
	return m
}

func (m machineDouble) Socket() string { return m[0].Socket }

func (m machineDouble) Nodes() []Node {
	if len(m) == 1 {
		return nil
	}
	return m
}

// Enter returns an error, as a machine does where it cannot.
func (m machineDouble) Enter(node string) error { return fmt.Errorf("enter %s", node) }

func (m machineDouble) Settled(complete cobra.CompletionFunc) cobra.CompletionFunc { return complete }

// command returns a command that has those of m below it.
func (m machineDouble) command(args ...string) *cobra.Command {
	root := &cobra.Command{Use: "coracle", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands(m)...)
	root.SetArgs(args)
	return root
}
