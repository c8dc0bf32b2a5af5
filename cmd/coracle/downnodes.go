package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/nodes"
)

// removeNode stops a further node, and removes it from the cluster and from this machine. Its
// namespaces stay.
func (u *upRun) removeNode(ctx context.Context, client *api, n int) error {
	name := u.o.nodeName(n)
	registered := cmp.Or(remembered(u.of(n, name)).Node, name) // before another --node-name
	if u.nodeNetwork(*u.o).Has(n) {
		if err := u.onNode(ctx, name, "down"); err != nil {
			return err
		}
	}
	if err := client.deleteNode(ctx, registered); err != nil {
		return err
	}
	return u.removeNodeData(n)
}

// removeNodeData removes the files of a node that was stopped.
func (p place) removeNodeData(n int) error {
	if err := os.RemoveAll(p.joinedFile(n)); err != nil {
		return err
	}
	root := filepath.Join(p.nodesRoot(), strconv.Itoa(n))
	if _, err := os.Lstat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	_, err := removeTree(root)
	return err
}

// hasVolumes is an error if a node has data that must not be deleted.
func (p place) hasVolumes(ctx context.Context) error {
	data, err := measureVolumes(ctx, p.volumesDir())
	if err != nil {
		return fmt.Errorf("volumes of claims: %w", err)
	}
	if data.volumes > 0 {
		return fmt.Errorf("it has %s", data)
	}
	return p.checkCSI()
}

// removeSurplus removes the nodes that an earlier up has made beyond the present number.
func (u *upRun) removeSurplus(ctx context.Context, client *api, steps *steps) error {
	for n := u.o.nodes() + 1; n <= nodes.Most; n++ {
		p := u.of(n, u.o.nodeName(n))
		if _, err := os.Lstat(p.root); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := p.hasVolumes(ctx); err != nil {
			return fmt.Errorf("--nodes %d: node %s cannot be deleted: %w; 'coracle down%s' and then 'coracle up%[4]s --nodes %d' start it again",
				u.o.nodes(), u.o.nodeName(n), err, u.flags(), n)
		}
		if err := u.removeNode(ctx, client, n); err != nil {
			return fmt.Errorf("remove node %s: %w", u.o.nodeName(n), err)
		}
		steps.done("node " + u.o.nodeName(n) + " is deleted")
	}
	return nil
}

// downNodes ends the further nodes of this machine, and removes their namespaces and what connects
// them. What they keep in --root stays. ended says whether there were any.
func (p place) downNodes(ctx context.Context, o upOptions) (ended bool, err error) {
	w := p.nodeNetwork(o)
	if o.Server != "" || o.Port == 0 || !w.Exists() {
		return false, nil
	}
	if err := p.emptyNodes(ctx, o, w); err != nil {
		return false, err
	}
	return true, os.RemoveAll(p.nodesState())
}

// emptyNodes stops all processes of the further nodes, and removes their namespaces.
func (p place) emptyNodes(ctx context.Context, o upOptions, w nodes.Network) error {
	// An up that still starts nodes, or that was killed, has joins. A node's down would wait for one
	// that starts the node.
	late, err := ownCommands(w)
	if err != nil {
		return err
	}
	for _, pid := range late {
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Signal(unix.SIGTERM) // it may have ended
		}
	}
	for {
		if err := p.downEach(ctx, o, w); err != nil {
			return err
		}
		late, err := removeEmpty(w)
		if err != nil || len(late) == 0 {
			return err
		}
		for _, pid := range late { // they may have started something since
			if err := end(ctx, pid); err != nil {
				return err
			}
		}
	}
}

// removeEmpty removes the nodes' namespaces if none of our commands runs on them. Otherwise it
// returns those.
func removeEmpty(w nodes.Network) (late []int, err error) {
	open, err := w.Close()
	if err != nil {
		return nil, err
	}
	defer open()
	if late, err = ownCommands(w); err != nil || len(late) > 0 {
		return late, err
	}
	return nil, w.Remove()
}

// ownCommands returns the processes on the further nodes that are commands of this program, such as
// join. Those in sessions of their own are not: they are a node's supervisor, which its down ends.
func ownCommands(w nodes.Network) (own []int, err error) {
	inside, err := w.Inside()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for _, pid := range inside {
		program, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
		if err != nil {
			continue // it has ended
		}
		if sid, err := unix.Getsid(pid); err != nil || sid == pid {
			continue
		}
		// An upgrade may have replaced the file of one that runs.
		if filepath.Base(strings.TrimSuffix(program, " (deleted)")) == filepath.Base(self) {
			own = append(own, pid)
		}
	}
	return own, nil
}

// downEach stops each further node.
func (p place) downEach(ctx context.Context, o upOptions, w nodes.Network) error {
	var errs [nodes.Most + 1]error
	var group errgroup.Group
	group.SetLimit(atOnce)
	for n := 2; n <= nodes.Most; n++ {
		if w.Has(n) {
			group.Go(func() error {
				errs[n] = p.onNode(ctx, o.nodeName(n), "down")
				return nil
			})
		}
	}
	_ = group.Wait() // each has its own error
	return errors.Join(errs[:]...)
}

// checkPurgeNodes refuses to delete data of claims on further nodes that the caller has not agreed
// to.
func (p place) checkPurgeNodes(ctx context.Context, o upOptions, agreed bool) error {
	for _, further := range p.further(o) {
		if _, err := further.checkPurge(ctx, agreed); err != nil {
			return err
		}
		if err := further.checkCSI(); err != nil {
			return err
		}
	}
	return nil
}

// purgeNodes removes the files of all further nodes.
func (p place) purgeNodes() error {
	for n := 2; n <= nodes.Most; n++ {
		if err := p.removeNodeData(n); err != nil {
			return err
		}
	}
	return os.RemoveAll(p.nodesRoot())
}
