// Command status runs the targets of targets.txt and keeps their results in docs/status.md.
//
//	status run [TARGET...]   runs them, all by default, and writes the page after each
//	status check             fails unless each target has passed with the files of this commit
//
// A row names the tree that its target was run on: a hash of the covered files in the commit. A
// row whose files have changed since is outdated. A target passes only if its files were those of
// the commit, without changes and without untracked files, before the run and after it.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

//go:embed targets.txt
var list string

const page = "docs/status.md"

func main() {
	log.SetFlags(0)
	log.SetPrefix("status: ")
	flag.Parse()
	targets, err := parseTargets(list)
	if err != nil {
		log.Fatal(err)
	}
	switch flag.Arg(0) {
	case "run":
		err = run(targets, flag.Args()[1:])
	case "check":
		err = check(targets)
	default:
		err = errors.New("say run or check")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// run runs the named targets. The error names those that failed.
func run(targets []target, names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(targets, func(t target) bool { return t.name == name }) {
			return fmt.Errorf("no target %q in hack/status/targets.txt", name)
		}
	}
	var failed []string
	var errs []error // one target that cannot run keeps no other from running
	for _, t := range targets {
		if len(names) > 0 && !slices.Contains(names, t.name) {
			continue
		}
		if t.needs != "" && os.Getenv(t.needs) == "" {
			log.Printf("%s: not run, %s is not set", t.name, t.needs)
			continue
		}
		r, err := runTarget(t)
		if err != nil {
			log.Printf("%s: %v", t.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
			continue
		}
		rows, err := readPage(page)
		if err == nil {
			rows[t.name] = r
			err = os.WriteFile(page, []byte(formatPage(targets, rows)), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s, not written: %w", t.name, r.result, err))
			break // no other row could be written
		}
		if r.result != "passed" {
			failed = append(failed, t.name)
		}
	}
	if len(failed) > 0 {
		errs = append(errs, fmt.Errorf("failed: %s; their output is in out/check", strings.Join(failed, ", ")))
	}
	return errors.Join(errs...)
}

// runTarget runs make with the target's arguments. Its output goes to out/check/NAME.log.
func runTarget(t target) (row, error) {
	tree, err := t.cleanTree()
	if err != nil {
		return row{}, fmt.Errorf("not run: %w", err)
	}
	commit, err := git("rev-parse", "--short=12", "HEAD")
	if err != nil {
		return row{}, err
	}
	path := filepath.Join("out/check", t.name+".log")
	if err := os.MkdirAll("out/check", 0o755); err != nil {
		return row{}, err
	}
	output, err := os.Create(path)
	if err != nil {
		return row{}, err
	}
	defer func() { _ = output.Close() }()
	started := time.Now()
	cmd := exec.Command("make", append([]string{"--no-print-directory"}, t.arguments...)...)
	// Tests name themselves, so that they can be counted.
	cmd.Env = append(os.Environ(), "TESTFLAGS=-v")
	cmd.Stdout, cmd.Stderr = output, output
	failure := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](failure); failure != nil && !ok {
		return row{}, failure
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return row{}, err
	}
	r := row{result: "passed", counts: count(string(text)), commit: commit, tree: tree, machine: machine()}
	if failure != nil {
		r.result = "failed"
	} else if after, err := t.cleanTree(); err != nil {
		return row{}, fmt.Errorf("its files have changed during the run: %w", err)
	} else if after != tree {
		return row{}, fmt.Errorf("its files have changed during the run: HEAD has tree %s instead of %s; run it again", after, tree)
	}
	log.Printf("%s: %s in %s (%d passed, %d failed, %d skipped)", t.name, r.result, time.Since(started).Round(time.Second),
		r.passed, r.failed, r.skipped)
	return r, nil
}

// check fails unless the page says of each target that it passed as it is in this commit.
func check(targets []target) error {
	rows, err := readPage(page)
	if err != nil {
		return err
	}
	var wrong []string
	for _, t := range targets {
		tree, err := t.tree()
		if err != nil {
			return err
		}
		switch r, ok := rows[t.name]; {
		case !ok:
			wrong = append(wrong, t.name+" has not been run")
		case r.result != "passed":
			wrong = append(wrong, t.name+" has "+r.result)
		case r.tree != tree:
			wrong = append(wrong, t.name+" is outdated: its files have changed since "+r.commit)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s does not hold for this commit (run make check-all TARGETS='...'):\n  %s", page, strings.Join(wrong, "\n  "))
	}
	return nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}
