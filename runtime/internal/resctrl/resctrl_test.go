package resctrl_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/runtime/internal/resctrl"
)

// tree is a directory that stands in for a resctrl file system, which few machines have.
func tree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "schemata"), "    MB:0=100\n    L3:0=7ff;1=7ff\n")
	write(t, filepath.Join(root, "info/last_cmd_status"), "ok\n")
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(data)
}

// join is what an engine does for a container.
func join(t *testing.T, root string, r *specs.LinuxIntelRdt) (*resctrl.Group, error) {
	t.Helper()
	g, err := resctrl.New(root, "one", r)
	if err != nil {
		return nil, err
	}
	return g, errors.Join(g.Make(r), g.Add(7))
}

func TestClassOfItsOwn(t *testing.T) {
	root := tree(t)
	g, err := join(t, root, &specs.LinuxIntelRdt{L3CacheSchema: "L3:0=7f0", MemBwSchema: "MB:0=20", Schemata: []string{"L2:0=f"}})
	if err != nil || !g.Own {
		t.Fatalf("%+v, %v", g, err)
	}
	if got := read(t, root+"/one/schemata"); got != "L3:0=7f0\nMB:0=20\nL2:0=f\n" {
		t.Errorf("schemata %q", got)
	}
	if got := read(t, root+"/one/tasks"); got != "7" {
		t.Errorf("tasks %q", got)
	}
	if err := g.Update("L3:0=f", ""); err != nil || read(t, root+"/one/schemata") != "L3:0=f\n" {
		t.Errorf("update: %v", err)
	}
	empty(t, root+"/one")
	if err := errors.Join(g.Remove(), g.Remove()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(root + "/one"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the class is left: %v", err)
	}
}

// empty takes the files of a directory away, which in resctrl do not keep it from being removed.
func empty(t *testing.T, dir string) {
	t.Helper()
	files, _ := filepath.Glob(dir + "/*")
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNamedClass(t *testing.T) {
	root := tree(t)
	if _, err := join(t, root, &specs.LinuxIntelRdt{ClosID: "gold"}); err == nil ||
		!strings.Contains(err.Error(), `closID "gold": there is no such class`) {
		t.Errorf("a class that is missing: %v", err)
	}
	if _, err := join(t, root, &specs.LinuxIntelRdt{ClosID: "gold", L3CacheSchema: "L3:0=7f0", EnableMonitoring: true}); err == nil {
		t.Error("a monitoring group was made without mon_groups") // which the kernel makes
	}
	write(t, root+"/gold/mon_groups/.kernel", "")
	write(t, root+"/gold/schemata", "    L3:0=07F0;1=7ff\n    MB:0=100\n")
	g, err := join(t, root, &specs.LinuxIntelRdt{ClosID: "gold", L3CacheSchema: "L3:0=7f0", EnableMonitoring: true})
	if err != nil || g.Own {
		t.Fatalf("%+v, %v", g, err)
	}
	if got := read(t, root+"/gold/mon_groups/one/tasks"); got != "7" {
		t.Errorf("tasks of the monitoring group %q", got)
	}
	_, err = join(t, root, &specs.LinuxIntelRdt{ClosID: "gold", L3CacheSchema: "L3:0=7f0;1=3"})
	if err == nil || !strings.Contains(err.Error(), "where the configuration says L3:0=7f0;1=3") {
		t.Errorf("a class that allows something else: %v", err)
	}
	empty(t, root+"/gold/mon_groups/one")
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if read(t, root+"/gold/tasks") != "7" {
		t.Error("the named class is gone")
	}
	if _, err := os.Stat(root + "/gold/mon_groups/one"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the monitoring group is left: %v", err)
	}
}

func TestDefaultClass(t *testing.T) {
	root := tree(t)
	g, err := join(t, root, &specs.LinuxIntelRdt{ClosID: "/"})
	if err != nil || g.Own || read(t, root+"/tasks") != "7" {
		t.Fatalf("%+v, %v", g, err)
	}
	if err := g.Remove(); err != nil || read(t, root+"/tasks") != "7" {
		t.Errorf("remove: %v", err)
	}
}

// A container whose id is the name of a class that someone else has made does not own that.
func TestClassOfTheSameName(t *testing.T) {
	root := tree(t)
	write(t, root+"/one/schemata", "")
	g, err := join(t, root, &specs.LinuxIntelRdt{})
	if err != nil || g.Own || read(t, root+"/one/schemata") != "" {
		t.Fatalf("%+v, %v", g, err)
	}
}

func TestErrorsHaveTheKernelsReason(t *testing.T) {
	root := tree(t)
	write(t, root+"/info/last_cmd_status", "Mask out of range\n")
	if err := os.MkdirAll(root+"/one/schemata", 0o755); err != nil { // cannot be written
		t.Fatal(err)
	}
	if _, err := join(t, root, &specs.LinuxIntelRdt{L3CacheSchema: "L3:0=fffff"}); err == nil ||
		!strings.HasSuffix(err.Error(), ": Mask out of range") {
		t.Errorf("error %v", err)
	}
}
