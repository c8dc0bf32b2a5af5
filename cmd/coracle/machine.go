package main

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/workload"
)

// A place is the workload.Machine whose first node is there.
var _ workload.Machine = (*place)(nil)

// Nodes are the nodes that up --nodes has made on this machine, if it has.
func (p *place) Nodes() []workload.Node {
	o := remembered(*p)
	if !o.several() {
		return nil
	}
	all := []workload.Node{{Name: o.Node, Socket: p.Socket()}}
	for _, further := range p.further(o) {
		all = append(all, workload.Node{Name: further.node, Socket: further.Socket()})
	}
	return all
}

// Enter executes this program again as if --node had been given.
func (p *place) Enter(node string) error {
	p.node = node
	return p.enterWith(slices.Insert(slices.Clone(os.Args), 1, "--node", node))
}

// Settled is complete for the place that a command's flags say. For a completion, cobra parses them
// after PersistentPreRunE.
func (p *place) Settled(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if err := p.settle(cmd); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}
