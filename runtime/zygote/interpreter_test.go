package zygote_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/runtimetest"
)

// The interpreter is C and runs as root, so it is tried natively, with undefined behaviour made
// a failure: see testdata/interpreter.c.
func TestInterpreter(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "interpreter")
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	out, err := exec.Command(cc, "-Wall", "-g", "-O1", "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
		"-Wno-unused-function", "-I.", "-o", program, "testdata/interpreter.c").CombinedOutput()
	if err != nil {
		t.Fatalf("compile the interpreter (is there a C compiler?): %v\n%s", err, out)
	}
	rounds := 50_000
	if testing.Short() {
		rounds = 5_000
	}
	args := []string{fmt.Sprint(os.Getpid()), fmt.Sprint(rounds)}
	for i, p := range realPlans(t) {
		for _, f := range []plan.Features{{}, {MountSetattr: true}} {
			code, err := p.Encode(f)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, fmt.Sprintf("plan%d-%v", i, f.MountSetattr))
			if err := os.WriteFile(file, code.Bytes, 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, fmt.Sprintf("%d:%s", code.Insns, file))
		}
	}
	out, err = exec.Command(program, args...).CombinedOutput()
	t.Logf("seed %s: %s", args[0], out)
	if err != nil {
		t.Fatal(err)
	}
}

func realPlans(t *testing.T) []*plan.Plan {
	t.Helper()
	spec := runtimetest.Spec("interpreter", "sh", "-c", "true")
	options := plan.Options{
		Rootfs: "/rootfs", Bundle: "/", ID: "interpreter", Home: "/", NoFile: [2]uint64{1024, 4096},
		IsDir:   func(string) (bool, error) { return true, nil },
		Seccomp: &plan.Filter{Program: []unix.SockFilter{{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}}},
	}
	create, err := plan.Create(spec, options)
	if err != nil {
		t.Fatal(err)
	}
	exec, err := plan.Exec(spec, spec.Process, unix.CLONE_NEWNS|unix.CLONE_NEWPID, options)
	if err != nil {
		t.Fatal(err)
	}
	return []*plan.Plan{create, exec}
}
