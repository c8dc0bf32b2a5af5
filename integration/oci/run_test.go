//go:build cgo

package oci

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime"
)

// run runs a container to its end and returns what it says. A program that fails is an error.
func (r *rig) run(s *specs.Spec) (string, error) {
	r.Helper()
	rd, wr, err := os.Pipe()
	r.must(err)
	defer rd.Close()
	c, pid, err := r.create(s, runtime.Stdio{Stdout: wr, Stderr: wr})
	if err != nil {
		wr.Close()
		return "", err
	}
	r.must(c.Start(context.Background()))
	wr.Close()
	out, err := io.ReadAll(rd)
	r.must(err)
	status := r.wait(pid)
	r.must(c.Delete(context.Background(), runtime.DeleteOptions{Force: true}))
	said := strings.TrimSpace(string(out))
	if status != 0 {
		return said, fmt.Errorf("the container's program exits with %d: %s", status, said)
	}
	return said, nil
}

// attackOnce runs an attacker that ends by itself, and returns its successes.
func (r *rig) attackOnce(s *specs.Spec) []string {
	r.Helper()
	out, err := r.run(s)
	r.must(err)
	return r.successes(out)
}

// successes are an attacker's lines before the last, which must say that it has tried.
func (r *rig) successes(out string) []string {
	r.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var tried int
	if _, err := fmt.Sscanf(lines[len(lines)-1], "TRIED %d", &tried); err != nil || tried == 0 {
		r.Fatalf("the attacker has not attacked: %q", out)
	}
	return lines[:len(lines)-1]
}

// attack is an attacker that goes on until it is stopped.
type attack struct {
	r   *rig
	c   runtime.Container
	pid int
	out *os.File

	mu    sync.Mutex
	hits  map[string]int // successes
	more  chan struct{}  // closed and replaced at each line
	tried int
	done  chan struct{} // closed at the end of the output
}

// attack starts a container that attacks, and waits until it does.
func (r *rig) attack(s *specs.Spec) *attack {
	r.Helper()
	rd, wr, err := os.Pipe()
	r.must(err)
	c, pid, err := r.create(s, runtime.Stdio{Stdout: wr, Stderr: wr})
	wr.Close()
	r.must(err)
	r.must(c.Start(context.Background()))
	a := &attack{r: r, c: c, pid: pid, out: rd, hits: map[string]int{}, more: make(chan struct{}), done: make(chan struct{})}
	go a.read()
	a.await("ready")
	return a
}

// read counts lines until stop has the attacker end.
func (a *attack) read() {
	defer close(a.done)
	lines := bufio.NewScanner(a.out)
	for lines.Scan() {
		a.mu.Lock()
		if _, err := fmt.Sscanf(lines.Text(), "TRIED %d", &a.tried); err != nil {
			a.hits[lines.Text()]++
		}
		close(a.more)
		a.more = make(chan struct{})
		a.mu.Unlock()
	}
}

// await waits for a line that starts so.
func (a *attack) await(prefix string) {
	a.r.Helper()
	late := time.After(patience)
	for {
		a.mu.Lock()
		more := a.more
		for line := range a.hits {
			if strings.HasPrefix(line, prefix) {
				a.mu.Unlock()
				return
			}
		}
		a.mu.Unlock()
		select {
		case <-more:
		case <-a.done:
			a.r.Fatalf("the attacker has ended before it said %q: %v", prefix, a.hits)
		case <-late:
			a.r.Fatalf("the attacker does not say %q", prefix)
		}
	}
}

// patience is how long something may take that always happens.
const patience = 2 * time.Minute

// stop ends the attack and returns how often what succeeded, without what starts with one of
// those. An attacker that has tried nothing, or has not ended by itself, fails the test.
func (a *attack) stop(known ...string) map[string]int {
	a.r.Helper()
	a.r.must(a.c.Signal(context.Background(), unix.SIGTERM))
	status := a.r.wait(a.pid)
	<-a.done
	a.out.Close()
	a.r.must(a.c.Delete(context.Background(), runtime.DeleteOptions{Force: true}))
	if status != 0 || a.tried == 0 {
		a.r.Fatalf("the attacker has tried %d times and exits with %d, want more than none and 0: %v", a.tried, status, a.hits)
	}
	delete(a.hits, "ready")
	for line := range a.hits {
		for _, k := range known {
			if strings.HasPrefix(line, "HIT "+k) {
				delete(a.hits, line)
			}
		}
	}
	return a.hits
}

// wins repeats what a careless runtime would do until the attacker has won.
func (r *rig) wins(what string, careless func() (won bool)) {
	r.Helper()
	for late := time.Now().Add(patience); !careless(); {
		if time.Now().After(late) {
			r.Fatalf("%s: the attacker does not win against a careless runtime either: this test proves nothing", what)
		}
	}
}
