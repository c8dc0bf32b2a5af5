package workload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/coracle-project/coracle/cmd/coracle/daemon/daemontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machineDouble is a Machine with these nodes.
type machineDouble []Node

// newMachine returns a machine with nodes whose sockets can be served. Its first one is at the
// socket that commands ask for by default.
func newMachine(t *testing.T, names ...string) machineDouble {
	t.Helper()
	t.Setenv("CORACLE_ADDRESS", "")
	dir := daemontest.Dir(t)
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

// run executes a command and returns what it has printed.
func (m machineDouble) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := m.command(args...)
	var out strings.Builder
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// follow executes a command that goes on until end, which ignores what it prints from then on and
// returns its error.
func (m machineDouble) follow(t *testing.T, args ...string) (lines *bufio.Scanner, end func() error) {
	t.Helper()
	out, in := io.Pipe()
	cmd := m.command(args...)
	cmd.SetOut(in)
	cmd.SetErr(in)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx); in.Close() }()
	return bufio.NewScanner(out), func() error {
		cancel()
		go func() { _, _ = io.Copy(io.Discard, out) }()
		return <-ended
	}
}
