//go:build cgo

// Command ocibench measures how long one container takes, in one run on one machine: coracle-oci
// next to crun and runc, and the engine in process next to libcontainer; with and without a
// seccomp profile, with 2,000 more mounts on the host, and from four callers at once.
//
//	bin/test/ocibench                          print the tables
//	bin/test/ocibench -md docs/benchmarks.md   write that page's part, too
//
// The programs take turns, so that a noisy moment falls on all of them. All run in namespaces of
// this program's own, without the unified cgroup hierarchy next to those of version 1, which crun
// refuses.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/integration/bench/quiet"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime/lc"
)

func main() {
	lc.Init()
	code := make(chan int)
	// Off the main thread, which libcontainer's package keeps.
	go func() {
		if os.Getenv(preparedVar) != "" {
			code <- run()
			return
		}
		code <- testkit.Isolate(prepare)
	}()
	os.Exit(<-code)
}

// preparedVar in the environment says that the host is prepared.
const preparedVar = "OCIBENCH_PREPARED"

// prepare prepares the host and executes the program once more: the cgroup library has looked
// at the host already.
func prepare() int {
	err := prepareHost()
	if err == nil {
		err = unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), preparedVar+"=1"))
	}
	fmt.Fprintln(os.Stderr, "ocibench: prepare the host:", err)
	return 1
}

func run() int {
	md := flag.String("md", "", "write the tables into this Markdown page")
	runs := flag.Int("n", 150, "runs of each command; a third of it with many mounts")
	flag.BoolVar(&quiet.OnBusyMachine, "busy", false, "measure on a machine that does other things, too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := quiet.Require(ctx)
	stop() // from here on a signal ends the program, and its namespaces
	if err != nil {
		fmt.Fprintln(os.Stderr, "ocibench:", err)
		return 1
	}
	text, err := measure(*runs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ocibench:", err)
		return 1
	}
	fmt.Print(text)
	if *md != "" {
		if err := page.Write(*md, page.Container, text); err != nil {
			fmt.Fprintln(os.Stderr, "ocibench:", err)
			return 1
		}
	}
	return 0
}

// turns is how often the programs take turns where each runs many times in a row.
const turns = 5

// manyMounts is how many more there are on the host for the second half.
const manyMounts = 2000

func measure(runs int) (string, error) {
	bin := os.Getenv("CORACLE_BIN")
	if bin == "" {
		return "", errors.New("CORACLE_BIN is not set, use make bench-oci")
	}
	before := load()
	dir, err := os.MkdirTemp("", "ocibench-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	w, err := newWorkshop(dir, bin)
	if err != nil {
		return "", err
	}
	defer w.close()
	began := time.Now()
	var r report
	say := func(what string) {
		fmt.Fprintf(os.Stderr, "ocibench: %3.0f s: %s\n", time.Since(began).Seconds(), what)
	}
	say("commands in turns")
	if r.commands, err = w.commands(runs, 1); err != nil {
		return "", err
	}
	say("commands in a loop")
	if r.commandsInRow, err = w.commands(runs, max(runs/turns, 1)); err != nil {
		return "", err
	}
	say("steps")
	if r.steps, err = w.steps(max(runs/3, 10)); err != nil {
		return "", err
	}
	many := &crowd{dir: filepath.Join(dir, "many")}
	say(fmt.Sprintf("engines, without and with %d mounts", manyMounts))
	if r.engines, r.enginesMany, err = w.engines(runs, many); err != nil {
		return "", err
	}
	say(fmt.Sprintf("commands with %d mounts", manyMounts))
	if err := many.mount(); err != nil {
		return "", err
	}
	r.commandsMany, err = w.commands(max(runs/3, 10), 1)
	if err = errors.Join(err, many.unmount()); err != nil { // or dir could not be removed
		return "", err
	}
	r.sizes = w.sizes()
	if r.machine, err = machine(bin, before); err != nil {
		return "", err
	}
	return r.markdown(), nil
}

// prepareHost makes the host what all runtimes can work on: a /run of this run's own, and no
// hybrid of cgroup versions.
func prepareHost() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("run", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroups, &fs); err != nil || fs.Type == unix.CGROUP2_SUPER_MAGIC {
		return err
	}
	return withoutUnified()
}

const cgroups = "/sys/fs/cgroup"

// withoutUnified shows the hierarchies of version 1 alone. To unmount the other would not do:
// crun then uses its empty directory, which is the host's.
func withoutUnified() error {
	const view = "/run/cgroup"
	if err := os.Mkdir(view, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("cgroup", view, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", view, err)
	}
	entries, err := os.ReadDir(cgroups)
	if err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(cgroups, e.Name()), filepath.Join(view, e.Name())
		if link, err := os.Readlink(from); err == nil { // cpu to cpu,cpuacct
			if err := os.Symlink(link, to); err != nil {
				return err
			}
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(from, &fs); err != nil || fs.Type != unix.CGROUP_SUPER_MAGIC {
			continue
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", from, err)
		}
	}
	if err := unix.Mount(view, cgroups, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", cgroups, err)
	}
	return unix.Unmount(view, unix.MNT_DETACH)
}
