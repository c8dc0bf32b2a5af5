package shim

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/handler"
	"github.com/coracle-project/coracle/runtime/plan"
)

// golden makes the state directory of an earlier release. Its records have a field that only a
// later release knows.
func golden(t *testing.T, version string) (state, logs string) {
	from, state, logs := filepath.Join("testdata", "golden", version), t.TempDir(), t.TempDir()
	if err := os.CopyFS(state, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(state, "*", "web", "*.json"))
	if err != nil || len(found) != 5 {
		t.Fatalf("records: %q, %v", found, err)
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(b), "LOGS", logs, 1)
		text = strings.Replace(text, `{"version"`, `{"later":{"a":[1]},"version"`, 1)
		text = strings.Replace(text, `"process":{`, `"process":{"later":true,`, 1)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{stdoutName, stderrName, stdinName} {
		if err := makeFIFO(filepath.Join(state, "c", "web", name)); err != nil {
			t.Fatal(err)
		}
	}
	return state, logs
}

// adopting makes a shim on a state directory, before adoption.
func adopting(t *testing.T, state string) *Service {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	dir := filepath.Join(state, "engine")
	own, err := engine.New(engine.Config{StateDir: dir, Log: log, Features: &plan.Features{}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := handler.New(dir, engine.Name, own)
	if err != nil {
		t.Fatal(err)
	}
	return New(Config{StateDir: state, Engine: all, Log: log})
}

// Records of an earlier release are adopted, and fields of a later release are kept.
func TestGoldenRecords(t *testing.T) {
	state, logs := golden(t, "v1")
	s := adopting(t, state)
	if err := s.CheckRecords(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := object(t, filepath.Join(state, "c", "web", recordName))
	if err := s.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := s.get("web")
	if err != nil {
		t.Fatal(err)
	}
	<-c.watched
	e, err := c.exec("e1")
	if err != nil {
		t.Fatal(err)
	}
	<-e.watched
	if c.engine == nil || c.init.exitState() == nil || !c.init.exitState().Unknown || e.process().exitState() == nil {
		t.Errorf("engine %v, init %+v, exec %+v", c.engine, c.init.exitState(), e.process().exitState())
	}
	if rec := c.record(); rec.PodID != "p1" || rec.Bundle != "/run/b/web" || !rec.Stdin || rec.LogFiles != 5 || rec.LogFileBytes != 10<<20 ||
		rec.Cgroups["pids"] != "/sys/fs/cgroup/pids/coracle-golden/web" || rec.Process.PID != 4194303 || rec.Process.StartTime != 284781 {
		t.Errorf("record %+v", rec)
	}
	after := object(t, filepath.Join(state, "c", "web", recordName))
	if after["phase"] != "exited" {
		t.Errorf("phase %v", after["phase"])
	}
	for name, value := range before {
		if name != "phase" && name != "process" && !reflect.DeepEqual(after[name], value) {
			t.Errorf("%s was %v, is %v", name, value, after[name])
		}
	}
	if p, _ := after["process"].(map[string]any); p["later"] != true || p["exit"] == nil {
		t.Errorf("process %v", after["process"])
	}
	b, err := os.ReadFile(filepath.Join(logs, "web.log"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 && f[1] == stdoutName {
			text.WriteString(f[3])
		}
	}
	if text.String() != "not logged yet\nunfin\n" {
		t.Errorf("log %q", text.String())
	}
	if err := c.delete(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(state, "*", "web")); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

func object(t *testing.T, path string) (fields map[string]any) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

// A shim that runs out of descriptors at any step of an adoption neither removes the container nor
// drops it, and adopts it when descriptors are free again.
func TestAdoptionWithoutDescriptors(t *testing.T) {
	left, adopted := 0, 0
	for free := 1; adopted < 2; free++ {
		state, _ := golden(t, "v1")
		s := adopting(t, state)
		restore := fewDescriptors(t, free)
		err := s.Adopt(t.Context())
		restore()
		switch u := s.notManaged("web"); {
		case err != nil && transient.Is(err):
			if err := s.Adopt(t.Context()); err != nil { // as in the next shim
				t.Fatal(err)
			}
		case err != nil:
			t.Fatalf("%d descriptors: %v", free, err)
		case u != nil:
			left++
			if !transient.Is(u.reason) || u.podID != "p1" {
				t.Errorf("%d descriptors: unmanaged %+v", free, u)
			}
			s.retry(t.Context())
		default:
			adopted++
		}
		c, err := s.get("web")
		if err != nil {
			t.Fatalf("%d descriptors: %v", free, err)
		}
		<-c.watched
		if bad, err := filepath.Glob(filepath.Join(state, "*", "web", "*"+badSuffix)); err != nil || len(bad) > 0 {
			t.Errorf("%d descriptors: taken for damaged: %q, %v", free, bad, err)
		}
		if rec := c.record(); rec.LogFiles != 5 || len(c.allExecs()) != 1 || len(c.stdio.pumps) != 2 {
			t.Errorf("%d descriptors: record %+v, %d execs", free, rec, len(c.allExecs()))
		}
		if err := c.delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left == 0 {
		t.Error("no adoption failed for lack of descriptors")
	}
}

// fewDescriptors leaves this process only a few free descriptors.
func fewDescriptors(t *testing.T, free int) (restore func()) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	if len(fds) < free {
		t.Fatalf("only %d descriptors below 256", len(fds))
	}
	for _, fd := range fds[len(fds)-free:] {
		unix.Close(fd)
	}
	return func() {
		for _, fd := range fds[:len(fds)-free] {
			unix.Close(fd)
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}
}
