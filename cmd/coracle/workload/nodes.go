package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	"github.com/coracle-project/coracle/cmd/coracle/output"
)

// machineNode is one of the nodes that this machine has.
type machineNode struct {
	*workload
	// name is "" if it is the only one.
	name string
}

// nodes are those that this machine has, or the one whose coracled the user has named.
func (w *workload) nodes() []machineNode {
	several := w.machine.Nodes()
	if len(several) == 0 || w.daemon.Socket() != w.machine.Socket() {
		return []machineNode{{w, ""}}
	}
	all := []machineNode{{w, several[0].Name}}
	for _, further := range several[1:] {
		d := daemon.New(func() string { return further.Socket })
		all = append(all, machineNode{&workload{daemon: d, machine: w.machine, patience: w.patience}, further.Name})
	}
	return all
}

// named is an error with the node's name.
func (n machineNode) named(err error) error {
	if err == nil || n.name == "" {
		return err
	}
	return fmt.Errorf("node %s: %w", n.name, err)
}

// soon does work, which must not keep other nodes waiting.
func (n machineNode) soon(ctx context.Context, work func(ctx context.Context) error) error {
	if n.name == "" {
		return work(ctx)
	}
	late := fmt.Errorf("coracled has not answered within %s", n.patience)
	// Not a deadline: gRPC would tell coracled, which could end the call a moment before.
	soon, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(n.patience, func() { cancel(late) }).Stop()
	err := work(soon)
	if err != nil && errors.Is(context.Cause(soon), late) {
		return late
	}
	return err
}

// onAll does work on all nodes that this machine has, at once, and returns their results in the
// order of the nodes. A node where it fails does not hide the others.
func onAll[T any](w *workload, cmd *cobra.Command,
	work func(ctx context.Context, n machineNode, c runtimeapi.RuntimeServiceClient) (T, error),
) ([]T, error) {
	all := w.nodes()
	results, errs := make([]T, len(all)), make([]error, len(all))
	var group sync.WaitGroup
	for i, n := range all {
		group.Go(func() {
			errs[i] = n.named(n.call(cmd, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) (err error) {
				results[i], err = work(ctx, n, c)
				return err
			}))
		})
	}
	group.Wait()
	return results, errors.Join(errs...)
}

// lookAtAll calls work with all pods and containers of each node that this machine has, one after
// the other. A node that does not answer does not hide the others.
func (w *workload) lookAtAll(cmd *cobra.Command,
	work func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient, all inventory) error,
) error {
	var errs []error
	for _, n := range w.nodes() {
		errs = append(errs, n.named(n.call(cmd, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
			var all inventory
			err := n.soon(ctx, func(ctx context.Context) (err error) {
				all, err = takeInventory(ctx, c)
				return err
			})
			if err != nil {
				return err
			}
			return work(ctx, n.name, c, all)
		})))
	}
	return errors.Join(errs...)
}

// lookFor calls work on the node of this machine that has what find finds by its name. find returns
// an id. For a further node, this program is executed again there.
func (w *workload) lookFor(cmd *cobra.Command, find func(all inventory) (id string, err error),
	work func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory) error,
) error {
	nodes := w.nodes()
	if len(nodes) == 1 {
		return w.look(cmd, work)
	}
	all, nodeOf, missing := w.inventoryOfAll(cmd)
	id, err := find(all)
	if err != nil {
		return errors.Join(err, missing) // it may be on a node that did not answer
	}
	node := nodeOf[id]
	if node == nodes[0].name {
		return w.look(cmd, work)
	}
	return w.machine.Enter(node)
}

// inventoryOfAll is the inventory of all nodes that this machine has, with the node of each pod and
// container by its id. missing says which nodes did not answer.
func (w *workload) inventoryOfAll(cmd *cobra.Command) (all inventory, nodeOf map[string]string, missing error) {
	nodeOf = map[string]string{}
	missing = w.lookAtAll(cmd, func(_ context.Context, node string, _ runtimeapi.RuntimeServiceClient, there inventory) error {
		for _, p := range there.pods {
			nodeOf[p.GetId()] = node
		}
		for _, c := range there.containers {
			nodeOf[c.GetId()] = node
		}
		all.pods, all.containers = append(all.pods, there.pods...), append(all.containers, there.containers...)
		return nil
	})
	return newInventory(all.pods, all.containers), nodeOf, missing
}

// lookForContainer is lookFor a container.
func (w *workload) lookForContainer(cmd *cobra.Command, name string,
	work func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory, ctr *runtimeapi.Container) error,
) error {
	find := func(all inventory) (string, error) {
		ctr, err := all.container(name)
		return ctr.GetId(), err
	}
	return w.lookFor(cmd, find, func(ctx context.Context, c runtimeapi.RuntimeServiceClient, all inventory) error {
		ctr, err := all.container(name)
		if err != nil {
			return err
		}
		return work(ctx, c, all, ctr)
	})
}

// listAll prints what list finds on each node that this machine has, and returns which could not be
// asked.
func listAll[T any](w *workload, cmd *cobra.Command, format *output.Format,
	list func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient, all inventory) ([]T, error), rows func(io.Writer, []T),
) error {
	lines := []T{}
	missing := w.lookAtAll(cmd, func(ctx context.Context, node string, c runtimeapi.RuntimeServiceClient, all inventory) error {
		there, err := list(ctx, node, c, all)
		lines = append(lines, there...)
		return err
	})
	if missing != nil && len(lines) == 0 {
		return missing
	}
	return errors.Join(missing, format.Print(cmd.OutOrStdout(), lines, func(out io.Writer) { rows(out, lines) }))
}
