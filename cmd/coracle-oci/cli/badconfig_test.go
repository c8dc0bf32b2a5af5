package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli/withlc"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestBadConfigs gives create and run, on each engine, configurations that are wrong: one clear
// sentence, status 1, and nothing is left.
func TestBadConfigs(t *testing.T) {
	r := newRefusals(t)
	if err := runtimetest.SpoilBundle(r.bundle); err != nil {
		t.Fatal(err)
	}
	for _, c := range runtimetest.BadConfigs() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Write(r.bundle, runtimetest.Spec(r.id, "/bin/true")); err != nil {
				t.Fatal(err)
			}
			for _, name := range engine.Names {
				r.refused(t, c.Says, "--engine", name, "create", "--bundle", r.bundle, r.id)
				r.refused(t, c.Says, "--engine", name, "run", "--no-subreaper", "--bundle", r.bundle, r.id)
			}
		})
	}
}

// TestBadIDs does so with ids.
func TestBadIDs(t *testing.T) {
	r := newRefusals(t)
	good := runtimetest.BadConfig{Field: "hostname", Value: `"boat"`}
	if err := good.Write(r.bundle, runtimetest.Spec(r.id, "/bin/true")); err != nil {
		t.Fatal(err)
	}
	for id, says := range map[string]string{
		"":                       "it is empty",
		".":                      "a directory's own name",
		"..":                     "a directory's own name",
		"../x":                   "at position 3, use only letters",
		"a/b":                    "at position 2, use only letters",
		"a\nb":                   "at position 2, use only letters",
		strings.Repeat("x", 129): "has 129 characters, at most 128 are allowed",
	} {
		for _, name := range engine.Names {
			r.refused(t, says, "--engine", name, "create", "--bundle", r.bundle, "--", id)
			r.refused(t, says, "--engine", name, "run", "--no-subreaper", "--bundle", r.bundle, "--", id)
		}
	}
}

// refusals are commands that fail and leave nothing. They run in this process, which must not
// become the reaper of other tests' orphans.
type refusals struct {
	bundle, state, id string
}

func newRefusals(t *testing.T) *refusals {
	dir := t.TempDir()
	return &refusals{
		bundle: runtimetest.Bundle(t), state: filepath.Join(dir, "state"),
		id: fmt.Sprintf("oci-%d-bad", os.Getpid()),
	}
}

func (r *refusals) refused(t *testing.T, says string, args ...string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var out, errs bytes.Buffer
	code := cli.Run(withlc.Companion(), append([]string{"--root", r.state}, args...), null, &out, &errs)
	what := strings.Join(args[1:3], " ")
	if code != 1 || out.Len() > 0 {
		t.Errorf("%s: status %d, output %q", what, code, &out)
	}
	got := errs.String()
	if !strings.HasPrefix(got, "coracle-oci: ") || !strings.Contains(got, says) || strings.Count(got, "\n") != 1 ||
		strings.Contains(got, "%!") {
		t.Errorf("%s: error %q, want one line saying %q", what, got, says)
	}
	r.nothingLeft(t, what)
}

func (r *refusals) nothingLeft(t *testing.T, what string) {
	t.Helper()
	if left, err := os.ReadDir(r.state); err == nil && len(left) > 0 {
		t.Errorf("%s left %v", what, left)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*" + runtimetest.CgroupParent + "/" + r.id); len(left) > 0 {
		t.Errorf("%s left cgroups %v", what, left)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), r.bundle) {
		t.Errorf("%s left mounts:\n%s", what, mounts)
	}
}

// TestLargeAnnotations makes a container with a megabyte of them: they are allowed.
func TestLargeAnnotations(t *testing.T) {
	r := newRefusals(t)
	spec := runtimetest.Spec(r.id, "/bin/true")
	spec.Annotations = map[string]string{"note": strings.Repeat("x", 1<<20)}
	if err := (runtimetest.BadConfig{Field: "hostname", Value: `"boat"`}).Write(r.bundle, spec); err != nil {
		t.Fatal(err)
	}
	for _, name := range engine.Names {
		// In a process of its own: run makes that the reaper of orphans.
		cmd := exec.Command(os.Args[0], "--root", r.state, "--engine", name, "run", "--bundle", r.bundle, r.id)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		r.nothingLeft(t, name)
	}
}
