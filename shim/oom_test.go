package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// TestOOMKills plays the life of containers below one cgroup, as the kernel and systemd do: kill
// counts there and above, and gone removes a cgroup before the shim has looked. What an end tells
// is NAME=oom or NAME=no.
func TestOOMKills(t *testing.T) {
	for name, script := range map[string]string{
		"not killed":                        "begin a; end a=no",
		"killed":                            "begin a; kill a; end a=oom",
		"not killed, cgroup gone":           "begin a; gone a; end a=no",
		"killed, cgroup gone":               "begin a; kill a; gone a; end a=oom",
		"one before it was killed":          "begin a; kill a; end a=oom; begin b; gone b; end b=no",
		"one before it, unknown":            "begin a; kill a; gone a; end a=oom; begin b; gone b; end b=no; begin c; kill c; gone c; end c=oom",
		"next to one that lives on":         "begin a; kill a; begin b; kill a; gone b; end b=no; end a=oom",
		"both, one of which lives on":       "begin a; kill a; begin b; kill a; kill b; gone b; end b=oom; gone a; end a=oom",
		"next to one that ends":             "begin a; begin b; kill a; end a=oom; gone b; end b=no",
		"next to one that ends and is gone": "begin a; begin b; kill a; gone a; end a=oom; gone b; end b=no",
		"after one that has ended":          "begin a; begin b; kill a; end a=oom; kill b; gone b; end b=oom",
		"next to one killed, ending well":   "begin a; begin b; kill a; gone a; end0 a=no; gone b; end b=no",
		"begun between":                     "begin a; begin b; kill a; end a=oom; begin c; kill b; gone b; end b=oom; gone c; end c=no",
		"by another shim":                   "begin a; begin b; kill a; end a=oom; restart; gone b; end b=no",
		"by another shim, killed meanwhile": "begin a; begin b; kill a; restart; kill b; gone b; end b=oom; end a=oom",
		"all is gone":                       "begin a; kill a; gone a; gone .; end a=no",
		"above does not count":              "gone .; begin a; kill a; gone a; end a=no; begin b; kill b; end b=oom",
	} {
		t.Run(name, func(t *testing.T) {
			p := &killPlay{t: t, s: New(Config{StateDir: t.TempDir()}), slice: t.TempDir(), made: map[string]*container{}}
			p.count(p.slice, 3) // long ago
			for step := range strings.SplitSeq(script, "; ") {
				verb, what, _ := strings.Cut(step, " ")
				p.do(verb, what)
			}
			if n := len(p.s.oom.living); n != 0 {
				t.Errorf("%d containers are still counted", n)
			}
		})
	}
}

type killPlay struct {
	t     *testing.T
	s     *Service
	slice string
	made  map[string]*container
}

func (p *killPlay) do(verb, what string) {
	dir := filepath.Join(p.slice, what)
	switch verb {
	case "begin":
		p.count(dir, 0)
		c := p.container(record{ID: what, SystemdCgroup: true})
		p.s.oom.begin(c)
		p.must(os.MkdirAll(c.dir, 0o700))
		p.must(c.persist())
	case "kill":
		for _, d := range []string{dir, p.slice} {
			if n, err := countOOMKills(d); err == nil {
				p.count(d, n+1)
			}
		}
	case "gone":
		p.must(os.Remove(filepath.Join(dir, "memory.events")))
	case "end", "end0":
		id, want, _ := strings.Cut(what, "=")
		code := int32(137)
		if verb == "end0" {
			code = 0
		}
		if got := p.s.oom.end(p.made[id], code); got != (want == "oom") {
			p.t.Errorf("%s is killed: %t; want %s", id, got, want)
		}
		delete(p.made, id)
	case "restart":
		p.s = New(p.s.cfg)
		for id := range p.made {
			rec, err := readRecord(p.s.dirOf(id))
			p.must(err)
			p.s.oom.goOn(p.container(rec))
		}
	default:
		p.t.Fatalf("unknown step %q", verb)
	}
}

func (p *killPlay) container(rec record) *container {
	rec.Version = recordVersion
	p.s.log = slog.New(slog.DiscardHandler)
	c := newContainer(p.s, rec)
	c.engine = scope{dir: filepath.Join(p.slice, rec.ID)}
	p.made[rec.ID] = c
	return c
}

// count writes what a cgroup has counted.
func (p *killPlay) count(dir string, n int64) {
	p.must(os.MkdirAll(dir, 0o700))
	p.must(os.WriteFile(filepath.Join(dir, "memory.events"),
		fmt.Appendf(nil, "low 0\nhigh 0\nmax 9\noom 7\noom_kill %d\noom_group_kill 0\n", n), 0o600))
}

func (p *killPlay) must(err error) {
	if err != nil {
		p.t.Helper()
		p.t.Fatal(err)
	}
}

// scope is a container in a cgroup that systemd has made.
type scope struct {
	runtime.Container
	dir   string
	asked func() // called when someone wants to know what it has counted; or nil
}

func (s scope) CgroupPaths() map[string]string { return map[string]string{"": s.dir} }

func (s scope) State(context.Context) (runtime.State, error) {
	return runtime.State{State: specs.State{Status: specs.StateRunning}}, nil
}

func (s scope) OOMKills(context.Context) (uint64, error) {
	if s.asked != nil {
		s.asked()
	}
	n, err := countOOMKills(s.dir)
	return uint64(n), err
}

// One that ended while another's end was being looked into had its kills counted as the other's,
// too.
func TestOOMKillsOfOneThatEndsMeanwhile(t *testing.T) {
	p := &killPlay{t: t, s: New(Config{StateDir: t.TempDir()}), slice: t.TempDir(), made: map[string]*container{}}
	p.count(p.slice, 0)
	p.do("begin", "a")
	p.do("begin", "b")
	p.do("kill", "a")
	p.do("gone", "b")
	p.made["b"].engine = scope{dir: filepath.Join(p.slice, "b"), asked: func() { p.do("end", "a=oom") }}
	p.do("end", "b=no")
}

// Where no one but the shim removes the cgroup nothing is asked of the one above.
func TestOOMKillsWithoutSystemd(t *testing.T) {
	p := &killPlay{t: t, s: New(Config{StateDir: t.TempDir()}), slice: t.TempDir(), made: map[string]*container{}}
	p.count(p.slice, 1)
	p.count(filepath.Join(p.slice, "a"), 1)
	c := p.container(record{ID: "a"})
	p.s.oom.begin(c)
	if c.record().OOMBefore != nil || len(p.s.oom.living) != 0 {
		t.Error("it is counted as if systemd had made its cgroup")
	}
	for code, want := range map[int32]bool{0: false, 1: true} {
		if got := p.s.oom.end(c, code); got != want {
			t.Errorf("exit code %d: killed %t", code, got)
		}
	}
}

// A container that had ended before the next shim came was looked into before that shim knew its
// neighbours, whose kills were counted as its own.
func TestOOMKillsAfterAdoption(t *testing.T) {
	slice := t.TempDir()
	p := &killPlay{t: t, slice: slice}
	p.count(slice, 1)
	p.count(filepath.Join(slice, "alive"), 1)
	var s *Service
	s = New(Config{StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Engine: loader(func(id string) runtime.Container {
		if id == "alive" { // slow to come: meanwhile the other may do whatever it does
			for range 10_000 {
				goruntime.Gosched()
				if c, err := s.get("ended"); err == nil && c.init.exitState() != nil {
					break
				}
			}
		}
		return scope{dir: filepath.Join(slice, id)}
	})})
	start, err := pidfd.StartTime(os.Getpid())
	p.must(err)
	for id, process := range map[string]processRecord{
		"ended": {PID: os.Getpid(), StartTime: start + 1}, // as if another had the pid by now
		"alive": {PID: os.Getpid(), StartTime: start},
	} {
		p.must(os.MkdirAll(s.dirOf(id), 0o700))
		p.must(writeRecord(filepath.Join(s.dirOf(id), recordName), record{
			Version: recordVersion, ID: id, Phase: phaseRunning, SystemdCgroup: true, OOMBefore: new(int64), Process: &process,
		}, nil))
	}
	p.must(s.Adopt(t.Context()))
	defer s.letGo()
	c, err := s.get("ended")
	p.must(err)
	<-c.init.exited
	if c.init.exitState().OOMKilled {
		t.Error("it has the other's kills")
	}
}

// loader is an engine that has all containers that there are.
type loader func(id string) runtime.Container

func (loader) List(context.Context) ([]string, error) { return nil, nil }

func (l loader) Load(_ context.Context, id string) (runtime.Container, error) { return l(id), nil }

func (loader) Create(context.Context, string, *specs.Spec, runtime.CreateOptions) (runtime.Container, error) {
	return nil, errors.ErrUnsupported
}
