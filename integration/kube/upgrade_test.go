package kube

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// programs are those of a cluster on a machine.
var programs = []string{
	"coracle", "coracled", "containerd-shim-coracle-v1", "coracle-lazy", "coracle-oci", "coracle-oci-libcontainer", "coracle-kube",
}

// installed is a cluster that does not run yet, whose programs can be replaced.
func installed(t *testing.T) *cluster {
	t.Helper()
	c := planCluster(t)
	bin := filepath.Join(filepath.Dir(c.root), "bin") // it has to outlive the test, for down
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		installProgram(t, bin, testkit.Bin(t, name))
	}
	c.coracle = filepath.Join(bin, "coracle")
	return c
}

// installProgram copies a program into dir.
func installProgram(t *testing.T, dir, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), raw, 0o755); err != nil {
		t.Fatal(err)
	}
}

// installBroken writes a program that only says its version.
func installBroken(t *testing.T, dir, name string) {
	t.Helper()
	script := "#!/bin/sh\nif [ \"$1\" = --version ]; then exit 0; fi\necho 'it is broken' >&2\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// killUpgrade starts an upgrade, and kills it when the new programs are in place.
func (c *cluster) killUpgrade(t *testing.T, fresh string) {
	t.Helper()
	cmd := c.command("upgrade", fresh)
	said, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines, seen := bufio.NewScanner(said), false
	for !seen && lines.Scan() {
		seen = strings.Contains(lines.Text(), "the new programs are in")
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, said)
	_ = cmd.Wait() // it was killed
	if !seen {
		t.Fatal("the upgrade has ended before the new programs were in place")
	}
	status, err := c.command("status").CombinedOutput()
	if err == nil || strings.Count(string(status), "\nupgrade ") != 1 ||
		!strings.Contains(string(status), "it was interrupted: 'coracle upgrade --root "+c.root) {
		t.Errorf("status after an upgrade that was killed: %v, %s", err, status)
	}
	out, err := c.command("upgrade", fresh).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "an upgrade was interrupted") {
		t.Errorf("another upgrade after one that was killed: %v, %s", err, out)
	}
}

// checkNoUpgrade checks that nothing of an upgrade is left that is over.
func (c *cluster) checkNoUpgrade(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(filepath.Dir(c.coracle), ".coracle-upgrade")); err == nil {
		t.Error("new or old programs are left")
	}
	if out := c.awaitWell(t); strings.Contains(out, "\nupgrade ") {
		t.Errorf("status after the upgrade: %s", out)
	}
}

// A killed upgrade to a coracled that does not start is taken back by the next one. What is no
// version is refused, in one line.
func TestBrokenUpgrade(t *testing.T) {
	c := installed(t)
	c.start(t)
	c.awaitWell(t)
	fresh, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(fresh, "coracled"), []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "name a directory or Debian packages"},
		{[]string{empty}, "nothing was changed: no programs of Coracle in " + empty},
		{[]string{fresh}, "nothing was changed: the new coracled: "},
		{[]string{filepath.Join(empty, "none")}, "nothing was changed: stat "},
		{[]string{filepath.Join(fresh, "coracled")}, "is neither a directory nor a Debian package"},
	} {
		out, err := c.command(append([]string{"upgrade"}, test.args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), test.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("upgrade %v: %v, %s, want %q", test.args, err, out, test.want)
		}
	}
	if err := os.Remove(filepath.Join(fresh, "coracled")); err != nil {
		t.Fatal(err)
	}
	installBroken(t, fresh, "coracled")
	c.killUpgrade(t, fresh)
	out, err := c.command("upgrade").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "coracle: upgrade: the old programs run again: coracle up: ") {
		t.Errorf("an upgrade to a program that does not work: %v, %s", err, out)
	}
	c.checkNoUpgrade(t)
}
