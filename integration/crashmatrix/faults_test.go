package crashmatrix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/fault"
	"github.com/coracle-project/coracle/internal/testkit"
)

// program is the program that passes a point.
type program string

const (
	daemon program = testkit.DaemonExe
	shim   program = testkit.ShimExe
)

// kind is a kind of fault.
type kind struct {
	name string
	// action is what happens at the point, in a process of the program.
	// victims are the processes that are dead afterwards.
	action func(n *node, at program, process int) (action string, victims []int, err error)
	// meanwhile runs after the fault has happened and before it is undone. If lasts is set, the
	// operation's first try has ended by then.
	meanwhile func(*cell) error
	// undo ends a lasting fault.
	undo  func(c *cell) error
	lasts bool
	// other means that a process other than the one at the point dies.
	other program
}

// kinds are all faults. Every point gets the first three in each run of the tests.
var kinds = []kind{
	{name: "kill", action: func(n *node, _ program, process int) (string, []int, error) {
		return fmt.Sprint("kill:", process), []int{process}, nil
	}},
	{name: "error", action: just("error")},
	{name: "hang", action: just("hang"), meanwhile: (*cell).othersGoOn, undo: func(c *cell) error { c.n.faults.Disarm(); return nil }},
	{name: "no room in state", lasts: true, action: func(n *node, _ program, _ int) (string, []int, error) {
		return "fill:" + n.State, nil, nil
	}, undo: func(c *cell) error { return os.Remove(filepath.Join(c.n.State, fault.FillName)) }},
	{name: "no room in root", lasts: true, action: func(n *node, _ program, _ int) (string, []int, error) {
		return "fill:" + n.Root, nil, nil
	}, undo: func(c *cell) error { return os.Remove(filepath.Join(c.n.Root, fault.FillName)) }},
	{name: "no descriptors", lasts: true, action: just("emfile"), undo: (*cell).raiseLimit},
	{name: "kill keeper", action: killing((*node).keeper)},
	{name: "kill starter", action: killing((*node).starters)},
	{name: "kill shim", other: shim, action: killing((*node).shims)},
	{name: "kill daemon", other: daemon, action: killing((*node).daemons)},
	{name: "kill keeper and shim", action: killing((*node).keeper, (*node).shims)},
}

// of reports whether a fault applies to a program's points. Killing the shim at its own points is
// "kill".
func (k kind) of(p program) bool { return k.other != p }

func just(action string) func(*node, program, int) (string, []int, error) {
	return func(*node, program, int) (string, []int, error) { return action, nil, nil }
}

// killing kills processes, possibly including the one at the point.
func killing(which ...func(*node) ([]int, error)) func(*node, program, int) (string, []int, error) {
	return func(n *node, _ program, _ int) (string, []int, error) {
		var all []int
		var names []string
		for _, f := range which {
			pids, err := f(n)
			if err != nil {
				return "", nil, err
			}
			for _, pid := range pids {
				all, names = append(all, pid), append(names, fmt.Sprint(pid))
			}
		}
		return "kill:" + strings.Join(names, "+"), all, nil
	}
}

func one(what string, pids []int) ([]int, error) {
	if len(pids) != 1 || pids[0] == 0 {
		return nil, fmt.Errorf("%s: processes %v, want one", what, pids)
	}
	return pids, nil
}

func (n *node) keeper() ([]int, error) { return one("keeper", n.Keepers()) }

// starters waits for pods' inits that have been started and do not execute their own program yet:
// until then they run the starter's.
func (n *node) starters() (pids []int, err error) {
	err = await(settleLimit, time.Millisecond, func() error {
		pids, err = one("starter", n.Starters())
		return err
	})
	return pids, err
}

func (n *node) shims() ([]int, error)   { return one("shim", n.Shims()) }
func (n *node) daemons() ([]int, error) { return one("coracled", []int{n.PID()}) }

// process is the process that passes the points of a program.
func (n *node) process(p program) (int, error) {
	pids, err := n.daemons()
	if p == shim {
		pids, err = n.shims()
	}
	if err != nil {
		return 0, err
	}
	return pids[0], nil
}

// raiseLimit lets the process open files again.
func (c *cell) raiseLimit() error {
	err := unix.Prlimit(c.process, unix.RLIMIT_NOFILE, &c.limit, nil)
	if errors.Is(err, unix.ESRCH) {
		return lost("the process without descriptors has died")
	}
	return err
}

// othersGoOn checks that everything else works while one operation hangs.
func (c *cell) othersGoOn() error {
	var found []error
	for name, ask := range c.n.overviews() {
		ctx, cancel := callContext()
		if err := ask(ctx); err != nil {
			found = append(found, lost("while it hangs, %s: %v", name, err))
		}
		cancel()
	}
	if err := c.bystander.exec("echo out; exit 3", "out\n", 3); err != nil {
		found = append(found, lost("while it hangs, exec in another pod: %v", err))
	}
	if err := c.bystander.counts(); err != nil {
		found = append(found, lost("while it hangs, another pod's container: %v", err))
	}
	w, err := c.n.newWorkload(nil, nil)
	if err != nil {
		return err
	}
	for name, step := range map[string]func() error{"life of another pod": func() error {
		for _, f := range []func() error{w.run, w.create, w.start, w.counts, w.stop, w.logWhole, w.stopPod, w.removePod} {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}} {
		if err := step(); err != nil {
			found = append(found, lost("while it hangs, %s: %v", name, err))
			c.others = append(c.others, w) // must be removed later
		}
	}
	return errors.Join(found...)
}

// overviews are the calls that list everything.
func (n *node) overviews() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"Status": func(ctx context.Context) error {
			_, err := n.Status(ctx, &cri.StatusRequest{Verbose: true})
			return err
		},
		"ListPodSandbox": func(ctx context.Context) error {
			_, err := n.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return err
		},
		"ListContainers": func(ctx context.Context) error {
			_, err := n.ListContainers(ctx, &cri.ListContainersRequest{})
			return err
		},
		"ListImages": func(ctx context.Context) error {
			_, err := n.Images.ListImages(ctx, &cri.ListImagesRequest{})
			return err
		},
		"ImageFsInfo": func(ctx context.Context) error {
			_, err := n.Images.ImageFsInfo(ctx, &cri.ImageFsInfoRequest{})
			return err
		},
		"ListContainerStats": func(ctx context.Context) error {
			_, err := n.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
			return err
		},
		"ListPodSandboxStats": func(ctx context.Context) error {
			_, err := n.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
			return err
		},
	}
}
