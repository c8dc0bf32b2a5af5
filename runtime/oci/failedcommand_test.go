package oci_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// TestFailedExecLeavesNothing: the process of an exec whose program is not there stayed a zombie in
// the container's PID namespace, which kept the container from ending for 20 s.
func TestFailedExecLeavesNothing(t *testing.T) {
	e := with(testkit.Crun(t))(t, filepath.Join(t.TempDir(), "state")).(by)
	defer e.Close()
	c, err := e.Create(t.Context(), "left", runtimetest.Spec("left", "/bin/sleep", "1000"),
		runtime.CreateOptions{Bundle: runtimetest.Bundle(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), runtime.DeleteOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), runtimetest.Spec("left", "/no/such").Process, runtime.ExecOptions{}); err == nil {
		t.Error("a program that is not there was executed")
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is valid
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for pid := range bytes.FieldsSeq(b) {
			stat, _ := os.ReadFile("/proc/" + string(pid) + "/stat")
			if bytes.Contains(stat, []byte(") Z ")) {
				t.Errorf("left: %s", stat)
			}
		}
	}
}
