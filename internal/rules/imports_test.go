package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	pathpkg "path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/coracle-project/coracle"

// tags are those that release builds of the shim and coracle-oci are made with.
const tags = "seccomp,no_grpc,netgo,osusergo"

// mayImport lists, for each layer, the layers below it that it may import. Anything
// of ours that is not listed is forbidden; internal leaves are free for all.
var mayImport = map[string][]string{
	"runtime":         {},
	"shim":            {"runtime"},
	"image":           {"snapshot"},
	"snapshot":        {},
	"network":         {},
	"pod":             {"shim", "runtime", "image", "snapshot", "network"},
	"cri":             {"pod", "image"},
	"pod/nri":         {"pod"},
	"image/api":       {},
	"image/imageapi":  {"image/api", "pod", "image", "snapshot"},
	"shim/nodeapi":    {"shim/nodeapi/v1", "shim"},
	"shim/nodeapi/v1": {},
	"cmd": {
		"cri", "pod/nri", "image/api", "image/imageapi", "shim/nodeapi", "shim/nodeapi/v1", "pod", "shim", "runtime", "image", "snapshot",
		"network",
	},
}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath, ForTest string
	Imports             []string
	Deps                []string
}

func TestArrowsPointOneWay(t *testing.T) {
	for _, p := range list(t, "./...") {
		from := layer(p.ImportPath)
		allowed, known := mayImport[from]
		if from == "internal" {
			allowed, known = nil, true
		}
		if !known {
			continue // integration and tools: tests, free to use anything
		}
		for _, i := range p.Imports {
			to := layer(i)
			if to == "" || to == "internal" || to == from || slices.Contains(allowed, to) {
				continue
			}
			t.Errorf("%s imports %s: %s/ may import only internal leaves and %v", p.ImportPath, i, from, allowed)
		}
	}
}

func TestPodKnowsNoProtobuf(t *testing.T) {
	for _, p := range list(t, "./pod/...") {
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "google.golang.org/") || strings.HasPrefix(i, "k8s.io/") {
				t.Errorf("%s imports %s: pod/ holds the life cycles, cri/ translates", p.ImportPath, i)
			}
		}
	}
}

// TestPodLeavesLinkNoParts keeps the small packages of pod/ apart from the parts that pods are made
// of: package failure translates their errors.
func TestPodLeavesLinkNoParts(t *testing.T) {
	for _, p := range list(t, "./pod/errdefs", "./pod/life", "./pod/table", "./pod/reserve") {
		for _, d := range p.Deps {
			if slices.Contains([]string{"image", "network", "shim", "snapshot", "runtime"}, layer(d)) {
				t.Errorf("%s links %s", p.ImportPath, d)
			}
		}
	}
}

func TestTestkitStaysInTests(t *testing.T) {
	for _, p := range list(t, "./cmd/...") {
		for _, kit := range []string{"internal/testkit", "pod/podtest"} {
			if slices.Contains(p.Deps, module+"/"+kit) {
				t.Errorf("%s links %s", p.ImportPath, kit)
			}
		}
	}
}

// TestSmallBinariesStaySmall is the budget of dependencies of the long-lived part:
// what serves networks or speaks Kubernetes belongs in coracled.
func TestSmallBinariesStaySmall(t *testing.T) {
	for _, p := range list(t, "./cmd/containerd-shim-coracle-v1", "./cmd/coracle-oci", "./cmd/coracle-oci-libcontainer") {
		for _, d := range p.Deps {
			for _, bad := range []string{"google.golang.org/grpc", "net/http", "go.opentelemetry.io/"} {
				if d == bad || (strings.HasSuffix(bad, "/") && strings.HasPrefix(d, bad)) {
					t.Errorf("%s links %s", p.ImportPath, d)
				}
			}
			if strings.HasPrefix(d, "k8s.io/") {
				t.Errorf("%s links %s", p.ImportPath, d)
			}
		}
	}
}

// TestCommandAsksTheDaemon keeps the operator's command a client: what it would do itself to
// images or pods, it would do behind coracled's back.
func TestCommandAsksTheDaemon(t *testing.T) {
	for _, p := range list(t, "./cmd/coracle") {
		for _, d := range p.Deps {
			if slices.Contains([]string{"cri", "image/imageapi", "image", "snapshot", "pod", "network"}, layer(d)) {
				t.Errorf("%s links %s", p.ImportPath, d)
			}
		}
	}
}

// TestOCIBinaryIsSlim: each start of a container pays for what coracle-oci links, so what few
// of them need is in coracle-oci-libcontainer.
func TestOCIBinaryIsSlim(t *testing.T) {
	for _, p := range list(t, "./cmd/coracle-oci") {
		for _, d := range p.Deps {
			for _, bad := range []string{
				"github.com/opencontainers/runc", "github.com/seccomp", "github.com/checkpoint-restore", "go.yaml.in", "sigs.k8s.io",
			} {
				if strings.HasPrefix(d, bad) {
					t.Errorf("%s links %s", p.ImportPath, d)
				}
			}
		}
	}
}

// layer is the key of mayImport that a package of ours is under, or its first path element. It is
// "" for other packages.
func layer(path string) string {
	rest, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	for dir := rest; dir != "."; dir = pathpkg.Dir(dir) {
		if _, known := mayImport[dir]; known {
			return dir
		}
	}
	first, _, _ := strings.Cut(rest, "/")
	return first
}

func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,ForTest,Imports,Deps", "-tags", tags}, patterns...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // or packages of C would have no files
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(out); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v: %s", err, stderr.String())
		}
		pkgs = append(pkgs, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	if len(pkgs) == 0 {
		t.Fatalf("go list found no package for %v", patterns)
	}
	return pkgs
}
