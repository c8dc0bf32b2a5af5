package integration

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestImageCommands runs testdata/image: `coracle image` as its users use it, each script with a
// coracled of its own, whose root directory is $ROOT; that of the script kept keeps blobs.
// $REGISTRY is a registry with the test images, $EMPTY another one, that all scripts push to,
// $PRIVATE one that wants user and secret. $CORACLE is the program, $SOCKET where it connects.
// Besides testscript's own commands there are
//
//	image ARG...              coracle image, against the script's coracled
//	container NAME SCRIPT...  a shell script in a busybox container, to its end; its id in $NAME
//	run IMAGE ARG...          a program in a container, to its end; what it says is stdout
//	restart                   ends coracled and starts it again
func TestImageCommands(t *testing.T) { runImageScripts(t, "image", nil) }

// runImageScripts runs the scripts of a directory of testdata, which may have more commands.
func runImageScripts(t *testing.T, dir string, more map[string]func(*testscript.TestScript, bool, []string)) {
	users := filepath.Join(t.TempDir(), "htpasswd")
	writeFile(t, users, htpasswd)
	s := imageScripts{
		coracle: testkit.Bin(t, "coracle"),
		empty:   testkit.StartRegistry(t, testkit.RegistryOptions{}),
		private: testkit.StartRegistry(t, testkit.RegistryOptions{Htpasswd: users}),
		nodes:   map[string]*node{},
	}
	cmds := map[string]func(*testscript.TestScript, bool, []string){
		"image": s.image, "container": s.container, "run": s.run, "restart": s.restart,
	}
	maps.Copy(cmds, more)
	scripts, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %q, %v", scripts, err)
	}
	// One after the other: each looks for what its coracled has left on the machine.
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Files: []string{script}, Setup: s.setup, Cmds: cmds, RequireExplicitExec: true,
			})
		})
	}
}

type imageScripts struct {
	coracle        string
	empty, private *testkit.Registry

	mu    sync.Mutex
	nodes map[string]*node // by the script's directory
}

func (s *imageScripts) setup(env *testscript.Env) error {
	o := testkit.Options{Registries: []string{s.empty.Addr, s.private.Addr}}
	if filepath.Base(env.WorkDir) == "script-kept" {
		o.Config = "[image]\nkeep_blobs = true\n"
	}
	n := newNode(env.T().(testing.TB), o)
	s.mu.Lock()
	s.nodes[env.WorkDir] = n
	s.mu.Unlock()
	env.Setenv("ROOT", n.Root)
	env.Setenv("SOCKET", n.Socket)
	env.Setenv("CORACLE", s.coracle)
	env.Setenv("REGISTRY", registry.Addr)
	env.Setenv("EMPTY", s.empty.Addr)
	env.Setenv("PRIVATE", s.private.Addr)
	env.Setenv("PATH", os.Getenv("PATH"))
	return nil
}

func (s *imageScripts) node(ts *testscript.TestScript) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[ts.Getenv("WORK")]
}

func (s *imageScripts) image(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(s.coracle, append(append([]string{"image"}, s.place(ts, args[0])...), args...)...)
	switch {
	case neg && err == nil:
		ts.Fatalf("image %s succeeds", strings.Join(args, " "))
	case !neg:
		ts.Check(err)
	}
}

// place is the flags that lead to the script's coracled. A build also has things of its own
// in its directories.
func (s *imageScripts) place(ts *testscript.TestScript, command string) []string {
	flags := []string{"--address", ts.Getenv("SOCKET")}
	if command == "build" {
		flags = append(flags, "--root", ts.Getenv("ROOT"), "--state", s.node(ts).State)
	}
	return flags
}

func (s *imageScripts) container(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: container NAME SCRIPT")
	}
	n := s.node(ts)
	p := n.runPod(nil)
	conf := shell("main", strings.Join(args[1:], " "))
	conf.Image.Image = n.pull("busybox")
	c := p.run(conf)
	if status := c.wait(); status.GetExitCode() != 0 {
		ts.Fatalf("the container ends with %d", status.GetExitCode())
	}
	ts.Setenv(args[0], c.id)
}

func (s *imageScripts) run(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: run IMAGE ARG...")
	}
	p := s.node(ts).runPod(nil)
	conf := shell("main", "")
	conf.Image.Image, conf.Command = args[0], args[1:]
	c := p.run(conf)
	status := c.wait()
	// The script's stdout is what a command has said.
	ts.Check(os.WriteFile(ts.MkAbs("said"), []byte(c.output("stdout")), 0o644))
	ts.Check(ts.Exec("cat", "said"))
	p.remove()
	if status.GetExitCode() != 0 {
		ts.Fatalf("the container ends with %d: %s", status.GetExitCode(), c.output(""))
	}
}

func (s *imageScripts) restart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: restart")
	}
	n := s.node(ts)
	ts.Check(n.Terminate())
	ts.Check(n.Start())
}
