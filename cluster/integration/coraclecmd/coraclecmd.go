// Package coraclecmd runs coracle on a node, for the tests of clusters of several.
package coraclecmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Node is where coracle runs.
type Node struct {
	Name string
	// Root is the node's directory for what outlives a reboot.
	Root string
	// Argv is the program, and what has it run on the node.
	Argv func() []string
	// Exec runs a program and returns what it said on stdout and stderr; nil runs it on this machine.
	Exec func(argv []string) (out, said string, err error)
}

// Run runs coracle, and returns what it said on stdout and stderr.
func (n *Node) Run(args ...string) (out, said string, err error) {
	argv := slices.Concat(n.Argv(), args)
	if n.Exec != nil {
		return n.Exec(argv)
	}
	return Exec(argv)
}

// Exec runs a program on this machine.
func Exec(argv []string) (out, said string, err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// Must is Run that has to succeed.
func (n *Node) Must(t *testing.T, args ...string) string {
	t.Helper()
	out, said, err := n.Run(args...)
	if err != nil {
		t.Fatalf("%s: coracle %s: %v\n%s%s\n%s", n.Name, args[0], err, out, said, n.Logs())
	}
	t.Logf("%s: coracle %s\n%s", n.Name, args[0], out)
	return out
}

// Refused expects one line of error with some words, and no other.
func (n *Node) Refused(t *testing.T, want string, args ...string) {
	t.Helper()
	out, said, err := n.Run(args...)
	said = strings.TrimSpace(said)
	if err == nil || !strings.Contains(said, want) || strings.Contains(said, "\n") {
		t.Errorf("%s: coracle %s: %v\n%s%s\nwant one line with %q", n.Name, strings.Join(args, " "), err, out, said, want)
	}
}

// Logs are the ends of the logs of the cluster process and coracled.
func (n *Node) Logs() string {
	var all strings.Builder
	for _, name := range []string{"kube.log", "coracled.log"} {
		data, err := os.ReadFile(filepath.Join(n.Root, "logs", name))
		if err == nil {
			fmt.Fprintf(&all, "--- %s of %s\n%s\n", name, n.Name, data[max(0, len(data)-6000):])
		}
	}
	return all.String()
}

// Invitation is what `coracle token create -o json` says.
type Invitation struct {
	Token, Server, CAHash, Join string
}

// Invite makes a token.
func (n *Node) Invite(t *testing.T, args ...string) (i Invitation) {
	t.Helper()
	out, said, err := n.Run(append([]string{"token", "create", "-o", "json"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &i)
	}
	if err != nil {
		t.Fatalf("token create: %v\n%s%s", err, out, said)
	}
	return i
}
