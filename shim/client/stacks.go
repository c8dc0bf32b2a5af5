package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxStackFiles   = 5       // per directory
	maxStackThreads = 512     // per file
	maxStackBytes   = 1 << 20 // per file
	stacksPrefix    = "stacks-"
)

// dump makes a Go program write the stacks of its goroutines to its log, which ends it. If that
// fails, dump saves the kernel's view of its threads in dir. Either shows later why the program
// hung. saved is the file, "" for the log.
func (p *process) dump(ctx context.Context, dir string, patience time.Duration) (saved string, err error) {
	if err := p.signal(unix.SIGQUIT); err != nil {
		return "", fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.ended(bounded) == nil {
		return "", nil
	}
	return saveStacks(dir, p.pid)
}

// saveStacks writes a file in dir that shows where each thread of a process waits.
func saveStacks(dir string, pid int) (string, error) {
	var b bytes.Buffer
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return "", fmt.Errorf("save stacks of process %d: %w", pid, err)
	}
	for _, t := range tasks[:min(len(tasks), maxStackThreads)] {
		fmt.Fprintf(&b, "thread %s\n", t.Name())
		for _, name := range []string{"wchan", "stack", "status"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/%s", pid, t.Name(), name))
			if err != nil {
				text = []byte(err.Error())
			}
			fmt.Fprintf(&b, "%s: %s\n", name, bytes.TrimSpace(text))
		}
		b.WriteByte('\n')
	}
	return saveReport(dir, "shim", b.Bytes())
}

// saveReport writes a file in dir and removes the oldest such files beyond maxStackFiles.
func saveReport(dir, of string, text []byte) (string, error) {
	// The time comes first, so that names sort by age.
	path := filepath.Join(dir, stacksPrefix+time.Now().UTC().Format("20060102-150405.000000000")+"-"+of)
	if err := os.WriteFile(path, text[:min(len(text), maxStackBytes)], 0o600); err != nil {
		return "", errors.Join(fmt.Errorf("save stacks: %w", err), os.Remove(path))
	}
	return path, pruneStacks(dir)
}

func pruneStacks(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), stacksPrefix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	var errs []error
	for _, name := range names[:max(0, len(names)-maxStackFiles)] {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}
