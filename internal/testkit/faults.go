package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/fault"
)

// FaultPoints asks a program built with fault points which ones are linked into it.
func FaultPoints(program string) ([]string, error) {
	exe, err := FindBin("faults", program)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = []string{"CORACLE_FAULTS=list"}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("fault points of %s: %w", program, err)
	}
	points := strings.Fields(string(out))
	if len(points) == 0 {
		return nil, fmt.Errorf("fault points of %s: none", program)
	}
	return points, nil
}

// FaultPointsOf are the fault points of a program whose names begin with one of prefixes; there
// is one for each, or the test fails.
func FaultPointsOf(t testing.TB, program string, prefixes ...string) []string {
	t.Helper()
	all, err := FaultPoints(program)
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for _, prefix := range prefixes {
		n := len(points)
		for _, p := range all {
			if strings.HasPrefix(p, prefix) {
				points = append(points, p)
			}
		}
		if len(points) == n {
			t.Fatalf("%s has no fault point %s…", program, prefix)
		}
	}
	return points
}

// Faults arms the fault points of programs that run with its environment.
type Faults struct {
	t             testing.TB
	file, reached string
	from          int // bytes of reached that were there before the last Arm
}

// NewFaults arms nothing yet.
func NewFaults(t testing.TB) *Faults {
	dir := t.TempDir()
	return &Faults{t: t, file: filepath.Join(dir, "armed"), reached: filepath.Join(dir, "reached")}
}

// Env is for the environment of programs.
func (f *Faults) Env() []string {
	return []string{"CORACLE_FAULTS_FILE=" + f.file, "CORACLE_FAULTS_REACHED=" + f.reached}
}

// Arm has an action happen once, where a point is reached next. What was armed is not any more.
func (f *Faults) Arm(point, action string) {
	f.t.Helper()
	f.Disarm()
	// Renamed: no process may see half of it.
	if err := os.WriteFile(f.file+".new", []byte(point+"=once*"+action), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.file+".new", f.file); err != nil {
		f.t.Fatal(err)
	}
}

// Disarm ends a hang and takes back what has not happened yet. Reached begins again.
func (f *Faults) Disarm() {
	f.t.Helper()
	for _, name := range []string{f.file, f.file + fault.TakenSuffix} {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			f.t.Fatal(err)
		}
	}
	f.from = len(f.lines())
}

// Taken says whether what was armed has happened, or is about to.
func (f *Faults) Taken() bool {
	_, err := os.Lstat(f.file + fault.TakenSuffix)
	return err == nil
}

// Reached are the points that were reached since Arm or Disarm, in order, each with what happened
// there, if anything.
func (f *Faults) Reached() []string {
	f.t.Helper()
	return strings.FieldsFunc(f.lines()[f.from:], func(r rune) bool { return r == '\n' })
}

func (f *Faults) lines() string {
	f.t.Helper()
	b, err := os.ReadFile(f.reached)
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	return string(b)
}
