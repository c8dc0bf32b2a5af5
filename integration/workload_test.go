package integration

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestWorkloadCommands runs testdata/workload: coracle's commands for pods and containers as their
// users use them, each script with a coracled of its own. Besides testscript's own commands there
// are
//
//	pod NAME                     a pod in namespace test; its id in $NAME
//	run POD NAME SCRIPT...       a shell script in a busybox container
//	ended POD NAME               waits until that has ended
//	stop, start                  coracled
//	rotate POD NAME              renames its log to .1 and has it opened again, as the kubelet does
//	opened POD NAME              waits until coracle reads its log
func TestWorkloadCommands(t *testing.T) {
	s := workloadScripts{coracle: testkit.Bin(t, "coracle"), worlds: map[string]*world{}}
	testscript.RunT(serially{t}, testscript.Params{
		Dir:   filepath.Join("testdata", "workload"),
		Setup: s.setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"pod": s.pod, "run": s.run, "ended": s.ended, "rotate": s.rotate, "opened": s.opened,
			"stop": s.stop, "start": s.start,
		},
		RequireExplicitExec: true,
	})
}

// serially runs scripts one after another: the daemons of two at once would share one network name,
// which the first to end takes away.
type serially struct{ *testing.T }

func (serially) Parallel() {}

func (s serially) Run(name string, f func(testscript.T)) {
	s.T.Run(name, func(t *testing.T) { f(serially{t}) })
}

func (serially) Verbose() bool { return testing.Verbose() }

type workloadScripts struct {
	coracle string

	mu     sync.Mutex
	worlds map[string]*world // by the script's directory
}

// world is what one script has.
type world struct {
	*node
	pods       map[string]*pod
	containers map[string]*container // by POD/NAME
}

func (s *workloadScripts) setup(env *testscript.Env) error {
	var o testkit.Options
	if filepath.Base(env.WorkDir) == "script-doctor" {
		o.RootSize = "500m" // how full the machine's disk is, is not the script's business
	}
	w := &world{newNode(env.T().(testing.TB), o), map[string]*pod{}, map[string]*container{}}
	s.mu.Lock()
	s.worlds[env.WorkDir] = w
	s.mu.Unlock()
	env.Setenv("CORACLE_ADDRESS", w.Socket)
	env.Setenv("STATE", w.State)
	env.Setenv("ROOT", w.Root)
	env.Setenv("CONFIG", w.Config)
	env.Setenv("REGISTRY", registry.Addr)
	env.Setenv("PATH", filepath.Dir(s.coracle)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return nil
}

func (s *workloadScripts) world(ts *testscript.TestScript, neg bool, args []string, least int, usage string) *world {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worlds[ts.Getenv("WORK")]
}

func (s *workloadScripts) pod(ts *testscript.TestScript, neg bool, args []string) {
	w := s.world(ts, neg, args, 1, "pod NAME")
	p := w.runPod(func(c *cri.PodSandboxConfig) {
		c.Metadata.Name, c.Labels = args[0], map[string]string{"app": args[0]}
	})
	w.pods[args[0]] = p
	ts.Setenv(args[0], p.id)
}

func (s *workloadScripts) run(ts *testscript.TestScript, neg bool, args []string) {
	w := s.world(ts, neg, args, 3, "run POD NAME SCRIPT...")
	conf := shell(args[1], strings.Join(args[2:], " "))
	conf.Image.Image = w.pull("busybox")
	key := args[0] + "/" + args[1]
	if before := w.containers[key]; before != nil {
		conf.Metadata.Attempt = before.status().GetMetadata().GetAttempt() + 1
		conf.LogPath = args[1] + ".again.log"
	}
	w.containers[key] = w.pods[args[0]].run(conf)
}

func (s *workloadScripts) ended(ts *testscript.TestScript, neg bool, args []string) {
	w := s.world(ts, neg, args, 2, "ended POD NAME")
	w.containers[args[0]+"/"+args[1]].wait()
}

func (s *workloadScripts) rotate(ts *testscript.TestScript, neg bool, args []string) {
	w := s.world(ts, neg, args, 2, "rotate POD NAME")
	c := w.containers[args[0]+"/"+args[1]]
	ts.Check(os.Rename(c.log, c.log+".1"))
	_, err := w.ReopenContainerLog(w.ctx(), &cri.ReopenContainerLogRequest{ContainerId: c.id})
	ts.Check(err)
}

// opened waits until `coracle` reads a container's log.
func (s *workloadScripts) opened(ts *testscript.TestScript, neg bool, args []string) {
	w := s.world(ts, neg, args, 2, "opened POD NAME")
	log := w.containers[args[0]+"/"+args[1]].log
	eventually(w.t, "coracle has "+log+" open", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, f := range files {
			name, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(f)), "comm"))
			if target, lerr := os.Readlink(f); err == nil && lerr == nil && target == log && string(name) == "coracle\n" {
				return true
			}
		}
		return false
	})
}

func (s *workloadScripts) stop(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(s.world(ts, neg, args, 0, "stop").Terminate())
}

func (s *workloadScripts) start(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(s.world(ts, neg, args, 0, "start").Start())
}

// What happens is printed as it happens, until an interrupt, which is no error.
func TestEventsCommand(t *testing.T) {
	n := newNode(t, testkit.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, testkit.Bin(t, "coracle"), "events", "--address", n.Socket, "-n", "test")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	// Nothing tells that it listens; what happens afterwards does.
	eventually(t, "an event is printed", func() bool {
		n.runPod(nil).remove()
		return len(lines) > 0
	})
	p := n.runPod(func(c *cri.PodSandboxConfig) { c.Metadata.Name = "web" })
	conf := shell("main", "exit 3")
	conf.Image.Image = n.pull("busybox")
	sees := func(wants ...string) {
		for _, want := range wants {
			eventually(t, "a line with "+want, func() bool {
				for {
					select {
					case line := <-lines:
						t.Log(line)
						if strings.Contains(line, want) {
							return true
						}
					default:
						return false
					}
				}
			})
		}
	}
	p.run(conf)
	sees("started   pod test/web (", "created   container test/web/main (", "started   container test/web/main (", "exit code 3, Error")
	p.remove() // not before: an event has what the container is when the event is sent
	sees("deleted   container test/web/main (", "deleted   pod test/web (")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for range lines { // to the end, before Wait closes the pipe
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}
