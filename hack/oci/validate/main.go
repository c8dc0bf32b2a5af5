// Command validate runs the validation programs of opencontainers/runtime-tools on two
// runtimes, ours and runc, prints both results of each, and fails if ours fails where the
// file of exceptions does not say so, or where runc does not fail, too.
//
// The programs write TAP (testanything.org) and take the runtime's command from the
// environment, without flags: the state directories are the runtimes' own defaults, so
// run this where /run is no one else's (hack/oci/test.sh).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	programs := flag.String("programs", "bin/oci/programs", "directory of the programs, runtimetest and the root file system")
	ours := flag.String("runtime", "bin/oci/coracle-oci", "the runtime under test")
	reference := flag.String("reference", "bin/oci/runc", "the runtime to compare with")
	exceptions := flag.String("exceptions", "hack/oci/exceptions.txt", "file of failures that the reference has, too")
	only := flag.String("run", "", "only programs whose names have this in them")
	logs := flag.String("logs", "", "directory for the programs' output (default: nowhere)")
	flag.Parse()
	failed, err := validate(*programs, []string{*ours, *reference}, *exceptions, *only, *logs)
	if err != nil {
		fmt.Fprintln(os.Stderr, "validate:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func validate(dir string, runtimes []string, exceptionsFile, only, logs string) (failed bool, err error) {
	known, err := readExceptions(exceptionsFile)
	if err != nil {
		return false, err
	}
	names, err := programNames(dir, only)
	if err != nil {
		return false, err
	}
	results := make([]map[string]result, len(runtimes))
	for i, rt := range runtimes {
		if results[i], err = runAll(dir, names, rt, logs); err != nil {
			return false, err
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 1, 2, ' ', 0)
	fmt.Fprintf(w, "PROGRAM\t%s\t%s\t\n", filepath.Base(runtimes[0]), filepath.Base(runtimes[1]))
	var bad []string
	for _, name := range names {
		ours, ref := results[0][name], results[1][name]
		verdict, ok := judge(ours, ref, known[name])
		if !ok {
			bad = append(bad, name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, ours, ref, verdict)
	}
	if err := w.Flush(); err != nil {
		return false, err
	}
	for _, name := range bad {
		fmt.Printf("\n--- %s\n%s\n", name, results[0][name].troubles())
	}
	fmt.Printf("%d programs, %d fail for a reason that is not known\n", len(names), len(bad))
	return len(bad) > 0, nil
}

// programNames are the executables, but for the one that they run inside.
func programNames(dir, only string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%w; hack/oci/build.sh programs makes it", err)
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if name != "runtimetest" && !strings.Contains(name, ".") && strings.Contains(name, only) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no program in %s has %q in its name", dir, only)
	}
	return names, nil
}

// runAll runs those that use one and the same cgroup one by one, the others side by side:
// most of their time they sleep.
func runAll(dir string, names []string, rt, logs string) (map[string]result, error) {
	rt, err := filepath.Abs(rt)
	if err != nil {
		return nil, err
	}
	var (
		mu  sync.Mutex
		out = map[string]result{}
	)
	one := func(name string) error {
		r, err := run(dir, name, rt)
		if err != nil {
			return err
		}
		mu.Lock()
		out[name] = r
		mu.Unlock()
		if logs == "" {
			return nil
		}
		return os.WriteFile(filepath.Join(logs, name+"."+filepath.Base(rt)), r.output, 0o644)
	}
	var g errgroup.Group
	g.SetLimit(2 * runtime.NumCPU())
	for _, name := range names {
		if !usesSharedCgroup(name) {
			g.Go(func() error { return one(name) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, name := range names {
		if usesSharedCgroup(name) {
			if err := one(name); err != nil {
				return nil, err
			}
		}
	}
	return out, cleanUp(rt)
}

func usesSharedCgroup(name string) bool {
	return strings.HasPrefix(name, "linux_cgroups") || strings.HasPrefix(name, "delete_")
}

// timeout is for one program; the slowest take some twenty seconds.
const timeout = 2 * time.Minute

func run(dir, name, rt string) (result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	tmp, err := os.MkdirTemp("", "validate")
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(tmp)
	// A container's root may be another user's.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return result{}, err
	}
	cmd := exec.CommandContext(ctx, "./"+name)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "RUNTIME="+rt, "TMPDIR="+tmp)
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		output = fmt.Appendf(output, "not ok - %s: %v\n", name, err)
	}
	return parse(output, cmd.ProcessState.ExitCode()), nil
}

// cleanUp deletes what programs have left, which a runtime's failure may have caused.
func cleanUp(rt string) error {
	out, err := exec.Command(rt, "list", "--quiet").Output()
	if err != nil {
		return fmt.Errorf("list leftovers of %s: %w", rt, err)
	}
	for id := range strings.FieldsSeq(string(out)) {
		if err := exec.Command(rt, "delete", "--force", id).Run(); err != nil {
			return fmt.Errorf("delete leftover %s of %s: %w", id, rt, err)
		}
	}
	removeCgroups()
	return nil
}

// removeCgroups removes those above the programs' containers: no runtime does.
func removeCgroups() {
	var dirs []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*/*"} {
		for _, name := range []string{"testdir", "testdir/*", "cgrouptest"} {
			found, _ := filepath.Glob(filepath.Join(pattern, name)) // the patterns are valid
			dirs = append(dirs, found...)
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir) // fails for files, and for what is in use
	}
}
