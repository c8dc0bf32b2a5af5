//go:build cgo

// Command ocibench measures how long one container takes: coracle-oci next to crun and runc, and
// the engine in process next to libcontainer; with and without a seccomp profile, with many more
// mounts on the host, and from four callers at once. It prints figures as JSON:
// `bin/test/bench -oci` prepares the host, runs it, and makes the tables.
//
// The programs take turns, so that a noisy moment falls on all of them.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/lc"
)

func main() {
	lc.Init()
	result := make(chan error)
	go func() { result <- run() }() // off the main thread, which libcontainer's package keeps
	if err := <-result; err != nil {
		fmt.Fprintln(os.Stderr, "ocibench:", err)
		os.Exit(1)
	}
}

// output is what is printed.
type output struct {
	Version string        `json:"version"` // of all programs
	Figures []page.Figure `json:"figures"`
}

func run() error {
	bin := flag.String("bin", "bin", "directory of coracle-oci, with the peers' in peers/bin")
	runs := flag.Int("n", 150, "runs of each command; a third of it with many mounts")
	flag.Parse()
	var out output
	var err error
	if out.Version, err = versions(*bin); err != nil {
		return err
	}
	if err := out.measure(*bin, *runs); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func (o *output) measure(bin string, runs int) error {
	dir, err := os.MkdirTemp("", "ocibench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	w, err := newWorkshop(dir, bin)
	if err != nil {
		return err
	}
	defer w.close()
	began := time.Now()
	say := func(what string) {
		fmt.Fprintf(os.Stderr, "ocibench: %3.0f s: %s\n", time.Since(began).Seconds(), what)
	}
	for _, how := range []struct {
		name  string
		inRow int
	}{{page.InTurns, 1}, {page.InLoop, page.InRow(runs)}} {
		say("commands " + how.name)
		all, err := w.commands(runs, how.inRow)
		if err != nil {
			return err
		}
		o.commands(how.name, all)
	}
	say("steps")
	steps, err := w.steps(max(runs/3, 10))
	if err != nil {
		return err
	}
	many := &crowd{dir: filepath.Join(dir, "many")}
	say(fmt.Sprintf("engines, without and with %d mounts", page.Mounts))
	engines, err := w.engines(runs, many)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("commands with %d mounts", page.Mounts))
	if err := many.mount(); err != nil {
		return err
	}
	mounted, err := w.commands(max(runs/3, 10), 1)
	if err = errors.Join(err, many.unmount()); err != nil { // or dir could not be removed
		return err
	}
	o.commands(page.WithMounts, mounted)
	for name, f := range engines {
		o.times(name, "create, start, exit seen", f.exited...)
		o.times(name, "… and deleted", f.deleted...)
		o.times(name, "exec of true, exit seen", f.exec...)
		o.found(name, fmt.Sprintf("containers/s, %d callers", callers), "", f.perSecond())
	}
	o.found(page.Starter, "PSS", "kB", float64(engines[engine.Name].starterPSS))
	for _, s := range steps {
		const least = 10 * time.Microsecond
		if s.median >= least {
			o.found(page.Steps, s.what, "", float64(s.median.Microseconds()))
		}
	}
	for name, path := range programs(bin) {
		st, err := os.Stat(path)
		if err != nil {
			return err
		}
		o.found(page.Sizes, name, "MB", float64(st.Size())/1e6)
	}
	return nil
}

func (o *output) found(of, name, unit string, value float64) {
	o.Figures = append(o.Figures, page.Figure{Of: of, Name: name, Unit: unit, Value: value})
}

func (o *output) times(of, name string, all ...time.Duration) {
	for _, d := range all {
		o.found(of, name, "ms", float64(d)/float64(time.Millisecond))
	}
}

func (o *output) commands(how string, all []sample) {
	for _, s := range all {
		o.times(how, s.name, s.wall...)
		o.times(page.CPU(how), s.name, s.cpu)
	}
}

// programs are those that are compared.
func programs(bin string) map[string]string {
	return map[string]string{
		"coracle-oci": filepath.Join(bin, "coracle-oci"), "crun": filepath.Join(bin, "peers/bin/crun"),
		"runc": filepath.Join(bin, "peers/bin/runc"),
	}
}

// versions are what the programs say of themselves.
func versions(bin string) (string, error) {
	var all []string
	for _, name := range []string{"coracle-oci", "crun", "runc"} {
		out, err := exec.Command(programs(bin)[name], "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w; make bench-oci installs it", name, err)
		}
		first, _, _ := strings.Cut(string(out), "\n")
		all = append(all, first)
	}
	return strings.Join(all, "; "), nil
}
