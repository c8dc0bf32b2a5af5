package crashmatrix

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/testkit"
)

// cell is an operation during which a fault happens at a point.
type cell struct {
	n     *node
	op    operation
	point string
	at    program
	kind  kind

	w         *workload // of the operation
	bystander *workload
	others    []*workload // could not be removed during the fault
	diffID    string      // of the imported image
	process   int         // that passes the point
	limit     unix.Rlimit // of its open files
}

// errNotReached means that nothing happened in a cell.
var errNotReached = errors.New("the point was not reached")

// setUp makes what the operation needs.
func (c *cell) setUp() error {
	if err := c.n.pull(testRef("busybox")); err != nil {
		return err
	}
	var err error
	if c.w, err = c.n.newWorkload(c.op.pod, c.op.container); err != nil {
		return err
	}
	c.w.killed = c.op.kills
	if err := c.w.upTo(c.op.from); err != nil {
		return err
	}
	if c.op.prepare != nil {
		return c.op.prepare(c)
	}
	return nil
}

// tearDown checks the result of the operation and removes everything.
func (c *cell) tearDown() error {
	var err error
	if c.op.done != nil {
		err = c.op.done(c)
	}
	err = errors.Join(err, c.w.end())
	for _, w := range c.others {
		w.killed = true
		if w.podID != "" {
			err = errors.Join(err, through("StopPodSandbox", w.stopPod), through("RemovePodSandbox", w.removePod))
		}
	}
	return err
}

// passes runs the operation without a fault. It returns the points that it passes, including those
// that follow a little later.
func (c *cell) passes() ([]string, error) {
	if err := c.setUp(); err != nil {
		return nil, err
	}
	c.n.quiet()
	c.n.faults.Disarm()
	if err := through(c.op.name, func() error { return c.op.do(c) }); err != nil {
		return nil, err
	}
	points := c.n.quiet()
	err := c.tearDown()
	c.n.quiet()
	return points, err
}

// quiet waits until nothing is being taken down and no point has been reached for a while, and
// returns the points that were. No event marks the end of the work after a call.
func (n *node) quiet() []string {
	points := n.faults.Reached()
	for still, end := 0, time.Now().Add(settleLimit); still < 20 && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
		busy, now := n.takesDown(), n.faults.Reached()
		if still++; busy || len(now) > len(points) {
			still = 0
		}
		points = now
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// takesDown says whether a record tells that something of a pod is still to be taken down.
func (n *node) takesDown() bool {
	type stages struct {
		Phase, Stage string
		Clean        bool
	}
	for _, glob := range []string{"pods/*/pod.json", "network/bridge/*.json", "network/cni/*.json"} {
		files, err := filepath.Glob(filepath.Join(n.State, glob))
		if err != nil {
			n.t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it is done
			}
			var r struct {
				stages        // of a network's record
				Value  stages // of a pod's
			}
			if err = errors.Join(err, json.Unmarshal(raw, &r)); err != nil {
				n.t.Errorf("%s: %v", file, err)
				continue
			}
			if r.Stage == "removing" || r.Value.Phase == "stopping" || r.Value.Phase == "removing" || r.Value.Phase == "stopped" && !r.Value.Clean {
				return true
			}
		}
	}
	return false
}

// run makes the fault happen and returns what was lost.
func (c *cell) run() (found error) {
	err := c.n.freshShim()
	if err != nil {
		return fmt.Errorf("before the cell: %w", err)
	}
	if c.bystander, err = c.n.newWorkload(nil, nil); err != nil {
		return err
	}
	if err := errors.Join(c.n.pull(testRef("busybox")), c.bystander.upTo(running)); err != nil {
		return fmt.Errorf("bystander: %w", err)
	}
	same, err := c.bystander.pid()
	if err != nil {
		return fmt.Errorf("bystander: %w", err)
	}
	if err := c.setUp(); err != nil {
		return fmt.Errorf("before the fault: %w", err)
	}
	found = c.fault()
	c.n.faults.Disarm()
	if err := c.n.ready(); err != nil {
		return errors.Join(found, err)
	}
	found = errors.Join(found, c.tearDown())
	if now, err := c.bystander.pid(); err != nil || now != same {
		found = errors.Join(found, lost("bystander: it was process %d, is %d (%v)", same, now, err))
	}
	if err := c.bystander.end(); err != nil {
		found = errors.Join(found, fmt.Errorf("bystander: %w", err))
	}
	if err := c.n.leaks(settleLimit); err != nil {
		// Remove leftovers, so that the next cell does not find them again.
		found = errors.Join(found, err)
		if knownLimit(c.kind.name, c.point, found) != "" {
			return errors.Join(found, c.n.takeBaseline())
		}
		return errors.Join(found, c.n.begin())
	}
	return found
}

// fault runs the operation with the point armed.
func (c *cell) fault() error {
	var err error
	if c.process, err = c.n.process(c.at); err != nil {
		return err
	}
	if err := unix.Prlimit(c.process, unix.RLIMIT_NOFILE, nil, &c.limit); err != nil {
		return err
	}
	action, victims, err := c.kind.action(c.n, c.at, c.process)
	if err != nil {
		return err
	}
	gone := make([]<-chan struct{}, len(victims))
	for i, pid := range victims {
		if gone[i], err = testkit.WatchExit(pid); err != nil {
			return err
		}
	}
	c.n.faults.Arm(c.point, action)
	tried, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		ended <- through(c.op.name, func() error {
			err := c.op.do(c)
			if first {
				close(tried)
			}
			first = false
			return err
		})
	}()
	// Some work is done after the call has ended.
	reached := within(throughLimit, "reached", c.n.faults.Taken)
	if reached != nil {
		return errors.Join(errNotReached, <-ended)
	}
	for i, pid := range victims {
		select {
		case <-gone[i]:
		case <-time.After(settleLimit):
			return fmt.Errorf("process %d was not killed", pid)
		}
	}
	var found error
	if c.kind.lasts {
		// Undone before it has happened, it would last for good.
		found = until("the fault has happened", c.n.faults.Done)
		// Until the client has an answer, or as long as a client may wait for one.
		select {
		case <-tried:
		case <-time.After(2 * time.Second):
		}
	}
	if c.kind.meanwhile != nil {
		found = errors.Join(found, c.kind.meanwhile(c))
	}
	if c.kind.undo != nil {
		found = errors.Join(found, c.kind.undo(c))
	}
	select {
	case err := <-ended:
		return errors.Join(found, err)
	case <-time.After(throughLimit + 2*callLimit):
		return errors.Join(found, fmt.Errorf("%s hangs", c.op.name))
	}
}
