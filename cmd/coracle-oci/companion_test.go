package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle-oci/cli"
	"github.com/coracle-project/coracle/cmd/coracle-oci/cli/withlc"
	"github.com/coracle-project/coracle/runtime/lc"
	"github.com/coracle-project/coracle/runtime/runtimetest"
	"github.com/coracle-project/coracle/runtime/zygote/early"
)

const companion = "coracle-oci-libcontainer"

// TestMain is the test, or one of the two programs by the name of the file.
func TestMain(m *testing.M) {
	lc.Init()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	switch filepath.Base(self) {
	case "coracle-oci":
		main()
	case companion:
		cli.Main(withlc.Companion(), early.Starting)
	}
	os.Exit(runtimetest.Tests(m.Run).Run())
}

// install makes files of the test's own program with the programs' names.
func install(t *testing.T, names ...string) (program string) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), self, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "coracle-oci")
}

func TestCompanionIsMissing(t *testing.T) {
	program := install(t, "coracle-oci")
	out, err := exec.Command(program, "features").CombinedOutput()
	want := "coracle-oci: this needs the program " + filepath.Join(filepath.Dir(program), companion) +
		", which is not there; install it next to coracle-oci\n"
	if err == nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

// TestCompanionTakesOver makes a container that only libcontainer can make, and drives it through
// the small program.
func TestCompanionTakesOver(t *testing.T) {
	program := install(t, "coracle-oci", companion)
	state := filepath.Join(t.TempDir(), "state")
	run := func(args ...string) (string, error) {
		out, err := exec.Command(program, append([]string{"--root", state}, args...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("features"); err != nil || !strings.Contains(out, `"ociVersionMax"`) {
		t.Errorf("features: %v: %s", err, out)
	}
	bundle := runtimetest.Bundle(t)
	id := fmt.Sprintf("companion-%d", os.Getpid())
	spec := runtimetest.Spec(id, "sleep", "1000")
	spec.Process.Terminal = true
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	// Terminals' users accept one connection: the two programs have to share it.
	path := filepath.Join(t.TempDir(), "console")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if out, err := run("--engine", "libcontainer", "create", "--bundle", bundle, "--console-socket", path, id); err != nil {
		t.Fatalf("create: %v: %s", err, out)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 64), oob)
	if err != nil || n != len(oob) {
		t.Errorf("what came on the console socket has %d bytes of descriptors: %v", n, err)
	}
	for _, args := range [][]string{{"start", id}, {"exec", id, "true"}, {"delete", "--force", id}} {
		if out, err := run(args...); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	if out, err := run("list", "--quiet"); err != nil || out != "" {
		t.Errorf("list: %v: %s", err, out)
	}
}
