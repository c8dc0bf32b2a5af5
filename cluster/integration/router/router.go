// Package router runs programs in network namespaces, and reads what they say as events, for tests
// with a router.
package router

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

// Lines are what a program says.
type Lines struct {
	name string
	next chan string
	had  []string
}

func listen(name string, from io.Reader) *Lines {
	l := &Lines{name: name, next: make(chan string, 10_000)}
	go func() {
		defer close(l.next)
		for s := bufio.NewScanner(from); s.Scan(); {
			l.next <- s.Text()
		}
	}()
	return l
}

// Await returns the next line that has all of words.
func (l *Lines) Await(t *testing.T, words ...string) string {
	t.Helper()
	limit := time.After(testnet.Patience)
	for {
		select {
		case line, ok := <-l.next:
			if !ok {
				t.Fatalf("%s ended without %q; it said:\n%s", l.name, words, strings.Join(l.had, "\n"))
			}
			l.had = append(l.had, line)
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return line
			}
		case <-limit:
			t.Fatalf("%s does not say %q; it said:\n%s", l.name, words, strings.Join(l.had, "\n"))
		}
	}
}

// Start runs a program in a space until the test ends, and returns it with what it says.
func Start(t *testing.T, in *testnet.Space, args ...string) (*exec.Cmd, *Lines) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := in.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		_ = cmd.Wait()
		_ = read.Close()
	})
	return cmd, listen(filepath.Base(args[0]), read)
}
