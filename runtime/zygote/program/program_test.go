package program

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/runtime/plan"
)

const remedy = "run `go generate ./runtime/zygote/program`, which needs gcc and gcc-aarch64-linux-gnu"

func TestIsOfTheSources(t *testing.T) {
	h := sha256.New()
	for _, name := range []string{"../zygote.c", "../zygote.h"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(data)
	}
	if have := fmt.Sprintf("%x", h.Sum(nil)); have != sources {
		t.Errorf("the zygote's source has changed: %s", remedy)
	}
}

// TestCanBeMadeAgain compiles the sources for both architectures. Where the compiler is the one
// that the checked-in program names, the bytes have to be the same: no one has to trust them.
// Another compiler's program differs, so what that makes is tested instead.
func TestCanBeMadeAgain(t *testing.T) {
	for arch, gcc := range map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"} {
		t.Run(arch, func(t *testing.T) {
			have, err := os.ReadFile("zprogram_" + arch + ".go")
			if err != nil {
				t.Fatal(err)
			}
			with := regexp.MustCompile(`with gcc (\S+)\.`).FindSubmatch(have)
			if with == nil {
				t.Fatalf("zprogram_%s.go does not say which compiler made it", arch)
			}
			said, err := exec.Command(gcc, "-dumpfullversion").Output()
			if err != nil {
				t.Fatalf("%s: %v; make deps installs it", gcc, err)
			}
			dir := t.TempDir()
			out, err := exec.Command("go", "run", "./internal/mkprogram", "-o", dir, "-arch", arch).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			file := filepath.Join(dir, "zprogram_"+arch+".go")
			made, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			version := strings.TrimSpace(string(said))
			if version == string(with[1]) {
				if string(made) != string(have) {
					t.Errorf("zprogram_%s.go is not what %s %s makes of the sources: %s", arch, gcc, version, remedy)
				}
				return
			}
			tested := testMade(t, arch, file)
			testkit.Untested(t, "that the checked-in program is that of the sources: it was made with %s %s, here is %s; what this makes %s",
				gcc, with[1], version, tested)
		})
	}
}

// testMade has the program in file instead of the checked-in one make containers, or, where the
// machine cannot run it, part of a program. It returns which.
func testMade(t *testing.T, arch, file string) string {
	t.Helper()
	own, err := filepath.Abs("zprogram_" + arch + ".go")
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(filepath.Dir(file), "overlay.json")
	text, err := json.Marshal(map[string]map[string]string{"Replace": {own: file}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	args, env, tested := []string{"build", "-o", os.DevNull, "-overlay", overlay, "."}, []string{"GOARCH=" + arch}, "is compiled, and not run"
	if arch == runtime.GOARCH {
		args = []string{
			"test", "-vet=off", "-count=1", "-overlay", overlay, "-run",
			"^(TestStartInYoungProcess|TestSignalHandler|TestLoadFromAnotherProcess|TestStarterHangs)$", ".", "../../engine",
		}
		env, tested = []string{"CGO_ENABLED=1"}, "has made containers"
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return tested
}

const helperVar = "CORACLE_TEST_STARTER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) != "" {
		sock, process, err := Start()
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_ = sock.Close()
		_ = process.Wait()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestStartInYoungProcess has the descriptors that Start opens begin at 3, which is the
// zygote's socket.
func TestStartInYoungProcess(t *testing.T) {
	for range 20 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperVar+"=1", "GODEBUG=containermaxprocs=0") // the runtime opens nothing
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

func TestName(t *testing.T) {
	if Name != plan.ZygoteName {
		t.Errorf("it is executed as %q and calls itself %q", Name, plan.ZygoteName)
	}
}

func TestSignalHandler(t *testing.T) {
	if handler != plan.SignalHandler {
		t.Errorf("it is at %#x, plans have %#x", handler, plan.SignalHandler)
	}
}
