package program

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/runtime/plan"
)

const mend = "run `go generate ./runtime/zygote/program`, which needs gcc and gcc-aarch64-linux-gnu"

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
		t.Errorf("the zygote's source has changed: %s", mend)
	}
}

// TestCanBeMadeAgain compiles the sources, where the compilers that the program was made with
// are installed, and compares: nobody has to trust what is checked in.
func TestCanBeMadeAgain(t *testing.T) {
	for arch, gcc := range map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"} {
		have, err := os.ReadFile("zprogram_" + arch + ".go")
		if err != nil {
			t.Fatal(err)
		}
		with := regexp.MustCompile(`with gcc (\S+)\.`).FindSubmatch(have)
		if with == nil {
			t.Fatalf("zprogram_%s.go does not say which compiler made it", arch)
		}
		version, err := exec.Command(gcc, "-dumpfullversion").Output()
		if err != nil || strings.TrimSpace(string(version)) != string(with[1]) {
			t.Logf("%s: there is no %s %s here", arch, gcc, with[1])
			continue
		}
		dir := t.TempDir()
		out, err := exec.Command("go", "run", "./internal/mkprogram", "-o", dir, "-arch", arch).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		made, err := os.ReadFile(dir + "/zprogram_" + arch + ".go")
		if err != nil {
			t.Fatal(err)
		}
		if string(made) != string(have) {
			t.Errorf("zprogram_%s.go is not what %s %s makes of the sources: %s", arch, gcc, with[1], mend)
		}
	}
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
