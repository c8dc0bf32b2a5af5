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

// FaultPoints asks a program built with fault points which points are linked into it.
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

// FaultPointsOf returns the fault points of a program whose names begin with one of prefixes. The
// test fails if a prefix has none.
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

// Faults arms fault points of programs that run with its environment.
type Faults struct {
	t             testing.TB
	file, reached string
	from          int // size of reached at the last Arm
}

// NewFaults returns a Faults that arms nothing yet.
func NewFaults(t testing.TB) *Faults {
	dir := t.TempDir()
	return &Faults{t: t, file: filepath.Join(dir, "armed"), reached: filepath.Join(dir, "reached")}
}

// Env is added to the environment of programs.
func (f *Faults) Env() []string {
	return []string{"CORACLE_FAULTS_FILE=" + f.file, "CORACLE_FAULTS_REACHED=" + f.reached}
}

// Arm makes an action happen once, at the next process that reaches the point. It replaces what was
// armed.
func (f *Faults) Arm(point, action string) {
	f.t.Helper()
	f.Disarm()
	// Rename the file, so that no process sees half of it.
	if err := os.WriteFile(f.file+".new", []byte(point+"=once*"+action), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.file+".new", f.file); err != nil {
		f.t.Fatal(err)
	}
}

// Disarm ends a hang, and disarms a fault that has not happened yet. It also resets Reached.
func (f *Faults) Disarm() {
	f.t.Helper()
	for _, name := range []string{f.file, f.file + fault.TakenSuffix, f.file + fault.DoneSuffix} {
		if err := os.Remove(name); err != nil && !os.IsNotExist(err) {
			f.t.Fatal(err)
		}
	}
	f.from = len(f.lines())
}

// Taken reports whether the armed fault has happened or is about to.
func (f *Faults) Taken() bool {
	_, err := os.Lstat(f.file + fault.TakenSuffix)
	return err == nil || f.Done()
}

// Done reports whether a full file system or a lowered limit is there: only then can it be undone.
func (f *Faults) Done() bool {
	_, err := os.Lstat(f.file + fault.DoneSuffix)
	return err == nil
}

// Reached returns the points reached since Arm or Disarm, in order, each with the fault that
// happened there, if any.
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
