package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/exitcodes"
	"github.com/coracle-project/coracle/internal/testkit"
)

// installed is a directory of programs, as a package manager maintains it: an upgrade puts other
// files under the same names. Running programs keep the old files until they are restarted.
type installed struct {
	t   *testing.T
	dir string
}

func install(t *testing.T) *installed {
	i := &installed{t, t.TempDir()}
	i.put(testkit.LazyExe, testkit.LazyExe)
	return i
}

// put installs a program of ours under a name.
func (i *installed) put(name string, elem ...string) {
	i.t.Helper()
	raw, err := os.ReadFile(testkit.Bin(i.t, elem...))
	if err != nil {
		i.t.Fatal(err)
	}
	path := filepath.Join(i.dir, name)
	if err := os.WriteFile(path+".new", raw, 0o755); err != nil {
		i.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		i.t.Fatal(err)
	}
}

// release installs all programs of a release: "previous", or "" for this one.
func (i *installed) release(release string) {
	i.daemon(release)
	i.shim(release)
}

func (i *installed) daemon(release string) { i.put(testkit.DaemonExe, release, testkit.DaemonExe) }
func (i *installed) shim(release string)   { i.put(testkit.ShimExe, release, testkit.ShimExe) }

// restartDaemon ends coracled, as systemctl restart does, and starts the installed one.
func restartDaemon(n *node) {
	n.t.Helper()
	if err := n.Terminate(); err != nil {
		n.t.Fatal(err)
	}
	if err := n.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.ready()
}

// While pods run, each program is replaced by the one of this release, and then again by the one of
// the previous release. The pods keep running, no line of their logs is lost or duplicated, and
// either release can use, stop and remove them.
func TestUpgrade(t *testing.T) {
	daemons := func(n *node) []int { return []int{n.PID()} }
	shims := func(n *node) []int { return n.Shims() }
	keepers := func(n *node) []int { return n.Keepers() }
	parts := []struct {
		name    string
		replace func(i *installed, release string)
		restart func(n *node)
		pids    func(n *node) []int // of the processes that must then be of the release
	}{
		{"daemon", (*installed).daemon, restartDaemon, daemons},
		{"shim", (*installed).shim, func(n *node) { killShims(n); n.ready() }, shims},
		{"keeper", (*installed).shim, func(n *node) { killKeeper(n); n.ready() }, keepers},
		{"all", (*installed).release, func(n *node) {
			killKeeper(n)
			n.ready()
			killShims(n)
			n.ready()
			restartDaemon(n)
		}, func(n *node) []int { return slices.Concat(daemons(n), shims(n), keepers(n)) }},
	}
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			programs := install(t)
			programs.release("previous")
			n := newNode(t, testkit.Options{Bin: programs.dir})
			n.pull("busybox")

			const lines = 30_000
			old := n.runPod(nil)
			server := old.run(shell("server", "while :; do nc -l -p 7 -e echo hello; done"))
			writer := old.run(shell("writer", numbered(lines)))
			ends := old.run(shell("ends", trap+"echo ready; while :; do sleep 3600 & wait; done"))
			eventually(t, "it runs", func() bool { return ends.output("") != "" })
			began := []int64{writer.status().GetStartedAt(), ends.status().GetStartedAt()}

			check := func(release string) *pod {
				t.Helper()
				for k, c := range []*container{writer, ends} {
					s := c.status()
					if s.GetState() != cri.ContainerState_CONTAINER_RUNNING || s.GetStartedAt() != began[k] {
						t.Fatalf("%s: container %s is %v, started at %d, was %d", release, s.GetMetadata().GetName(), s.GetState(), s.GetStartedAt(),
							began[k])
					}
					if out, code := c.exec("echo", release); out != release+"\n" || code != 0 {
						t.Errorf("%s: exec: %q, %d", release, out, code)
					}
				}
				p := n.runPod(nil)
				fresh := p.run(shell("server", "while :; do nc -l -p 7 -e echo hello; done"))
				for _, way := range []struct {
					from *container
					to   *pod
				}{{server, p}, {fresh, old}} {
					eventually(t, release+": the pods reach each other", func() bool {
						out, code := way.from.exec("nc", "-w", "10", way.to.status().GetNetwork().GetIp(), "7")
						return out == "hello\n" && code == 0
					})
				}
				if s := p.run(shell("short", "echo "+release+"; exit 3")).wait(); s.GetExitCode() != 3 {
					t.Errorf("%s: exit code %d, want 3", release, s.GetExitCode())
				}
				return p
			}
			var pods []*pod
			for _, release := range []string{"", "previous"} {
				part.replace(programs, release)
				part.restart(n)
				pids := part.pids(n)
				if len(pids) == 0 {
					t.Fatal("none runs")
				}
				for _, pid := range pids {
					// The link of a replaced file ends in " (deleted)".
					if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || filepath.Dir(exe) != programs.dir ||
						strings.HasSuffix(exe, " (deleted)") {
						t.Errorf("process %d runs %q, %v", pid, exe, err)
					}
				}
				pods = append(pods, check(fmt.Sprintf("release-%s", release)))
			}
			eventually(t, "the writer is done", func() bool {
				raw, _ := os.ReadFile(writer.log)
				return strings.Contains(string(raw), "stderr F done\n") && strings.Contains(string(raw), fmt.Sprintf("line %d", lines))
			})
			checkNumbered(t, writer, lines)
			ends.stop()
			want := int32(0)
			if part.name == "all" && !exitcodes.Kept(t) {
				want = 255 // see docs/decisions/supervision.md
			}
			if s := ends.wait(); s.GetExitCode() != want {
				t.Errorf("it ended with %d at SIGTERM, want %d", s.GetExitCode(), want)
			}
			for _, p := range append(pods, old) {
				p.remove()
			}
		})
	}
}
