package containerlog

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/shim/api"
	"github.com/coracle-project/coracle/shim/internal/rawfd"
)

// limited gives the rig's log a limit of that many files.
func (r *pumpRig) limited(files int) {
	log := r.p.log
	log.limit = Limit{api.MinLogBytes, files}
	r.p.rotate = func(n int) error { return log.rotate(n, func() {}) }
}

// put carries text through the pipe into the log, as much at a time as fits.
func (r *pumpRig) put(text string) {
	r.Helper()
	for len(text) > 0 {
		n := min(len(text), 64<<10)
		if _, err := r.fifo.WriteString(text[:n]); err != nil {
			r.Fatal(err)
		}
		text = text[n:]
		r.p.carry(drainLimit)
	}
}

// files are the log's, the oldest first, and their sizes' sum.
func (r *pumpRig) files() (names []string, sum int64) {
	r.Helper()
	old, err := asideOf(r.p.log.path)
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range old {
		names, sum = append(names, f.path), sum+f.size
	}
	if st, err := os.Stat(r.p.log.path); err == nil {
		names, sum = append(names, r.p.log.path), sum+st.Size()
	}
	return names, sum
}

// lines are the texts of a stream's whole records in all files.
func (r *pumpRig) lines(stream string) []string {
	r.Helper()
	var out []string
	names, _ := r.files()
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			r.Fatal(err)
		}
		for record := range strings.Lines(string(b)) {
			f := strings.SplitN(record, " ", 4)
			if len(f) != 4 || !strings.HasSuffix(record, "\n") || f[2] != "F" {
				r.Fatalf("%s has the record %q", name, record)
			}
			if f[1] == stream {
				out = append(out, f[3])
			}
		}
	}
	return out
}

// numbers are the lines from first to below end.
func numbers(first, end int) []string {
	var out []string
	for i := first; i < end; i++ {
		out = append(out, fmt.Sprintf("line number %d\n", i))
	}
	return out
}

// A container that writes much more than its log may have: no file and not all of them together
// exceed the limit at any time, and what is there are its last lines, none missing and none split.
func TestLogKeepsItsLimit(t *testing.T) {
	r := newPumpRig(t)
	r.limited(3)
	const end = 20_000
	all := numbers(0, end)
	for part := range slices.Chunk(all, 500) {
		r.put(strings.Join(part, ""))
		names, sum := r.files()
		if len(names) > 3 || sum > 3*api.MinLogBytes {
			t.Fatalf("%d files with %d bytes", len(names), sum)
		}
	}
	got := r.lines("stdout")
	if len(got) < 5000 || !slices.Equal(got, all[end-len(got):]) {
		t.Errorf("%d lines from %q to %q, not the last ones", len(got), got[0], got[len(got)-1])
	}
	names, _ := r.files()
	for _, name := range names {
		if st, err := os.Stat(name); err != nil || st.Size() > api.MinLogBytes {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	// Each file was full in no time, so a reader may have missed one.
	notes := r.lines("stderr")
	if len(notes) != 3 || !strings.Contains(notes[2], "what came before is in 0.log.") {
		t.Errorf("notes %q", notes)
	}
}

// Empty lines take fifty times as many bytes in the log, which is more than a file may have.
func TestLogOfEmptyLines(t *testing.T) {
	r := newPumpRig(t)
	r.limited(20)
	r.put(strings.Repeat("\n", 64<<10))
	if got := r.lines("stdout"); len(got) != 64<<10 {
		t.Errorf("%d lines", len(got))
	}
	if names, _ := r.files(); len(names) < 10 {
		t.Errorf("%d files", len(names))
	}
}

// What fills slowly has no note: followers have time enough.
func TestSlowRotationHasNoNote(t *testing.T) {
	r := newPumpRig(t)
	r.limited(3)
	r.p.log.begun = time.Now().Add(-2 * noteWithin)
	r.put(strings.Join(numbers(0, 5000), ""))
	if names, _ := r.files(); len(names) != 2 {
		t.Fatalf("files %q", names)
	}
	if notes := r.lines("stderr"); len(notes) != 0 {
		t.Errorf("notes %q", notes)
	}
}

// The kubelet may rotate, too, and its files count.
func TestKubeletRotatesToo(t *testing.T) {
	r := newPumpRig(t)
	r.limited(3)
	path := r.p.log.path
	for _, name := range []string{".20200101-000000.gz", ".20200102-000000", ".20200103-000000.tmp"} {
		if err := os.WriteFile(path+name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.put("a\n")
	if err := os.Rename(path, path+".20200104-000000"); err != nil {
		t.Fatal(err)
	}
	r.put("b\n")
	if err := r.p.log.Reopen(func() {}); err != nil {
		t.Fatal(err)
	}
	r.put("c\n")
	left, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{path, path + ".20200102-000000", path + ".20200103-000000.tmp", path + ".20200104-000000"}
	if !slices.Equal(left, want) {
		t.Errorf("files %q, want %q", left, want)
	}
	// It has renamed the file, and before it says so the file is full.
	r.put(strings.Join(numbers(0, 1000), ""))
	if err := os.Rename(path, path+".20200105-000000"); err != nil {
		t.Fatal(err)
	}
	r.put(strings.Join(numbers(1000, 6000), ""))
	if got := r.lines("stdout"); !slices.Equal(got[len(got)-6000:], numbers(0, 6000)) {
		t.Errorf("%d lines", len(got))
	}
	if names, sum := r.files(); len(names) > 3 || sum > 3*api.MinLogBytes {
		t.Errorf("%q have %d bytes", names, sum)
	}
}

// A shim that was killed between two steps of a rotation, simulated: the next goes on under the
// log's name.
func TestRotationCutShort(t *testing.T) {
	r := newPumpRig(t)
	r.limited(3)
	log := r.p.log
	if log.cutShort() {
		t.Error("cut short before anything happened")
	}
	if _, err := setAside(log.path, time.Now()); err != nil {
		t.Fatal(err)
	}
	if !log.cutShort() {
		t.Error("renamed, and not found to be cut short")
	}
	if err := os.WriteFile(log.path, nil, 0o640); err != nil { // opened, and the keeper not told
		t.Fatal(err)
	}
	if !log.cutShort() {
		t.Error("opened, and not found to be cut short")
	}
	if err := log.Reopen(func() {}); err != nil || log.cutShort() {
		t.Errorf("cut short after all: %v", err)
	}
}

// Each name sorts behind those before it, whatever the clock says.
func TestSetAsideInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var names []string
	for i := range 3 {
		if err := os.WriteFile(path, []byte{byte('a' + i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		name, err := setAside(path, noon)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.TrimPrefix(name, path))
	}
	if want := []string{".20260102-120000", ".20260102-120001", ".20260102-120002"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if _, err := setAside(path, noon); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing to set aside: %v", err)
	}
}

// The hour that clocks show twice in autumn: what is set aside in the second one is the later file.
func TestSetAsideInTheHourThatComesTwice(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "0.log")
	first := time.Date(2026, 10, 25, 0, 59, 59, 0, time.UTC) // 02:59:59
	for i, at := range []time.Time{first, first, first.Add(time.Minute), first.Add(time.Hour)} {
		if err := os.WriteFile(path, []byte{byte('a' + i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := setAside(path, at.In(berlin)); err != nil {
			t.Fatal(err)
		}
	}
	old, err := asideOf(path)
	if err != nil {
		t.Fatal(err)
	}
	order := ""
	for _, f := range old {
		b, err := os.ReadFile(f.path)
		if err != nil {
			t.Fatal(err)
		}
		order += string(b)
	}
	if order != "abcd" {
		t.Errorf("by name %q", order)
	}
}

// What starts like the log without having been set aside is another container's, or a user's.
func TestOthersFilesStay(t *testing.T) {
	r := newPumpRig(t)
	r.limited(2)
	var others []string
	for _, end := range []string{".1", ".log", ".20260102", ".20260102-120000.bak", ".99999999-999999"} {
		name := r.p.log.path + end
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		others = append(others, name)
	}
	r.put(strings.Join(numbers(0, 20_000), ""))
	for _, name := range others {
		if _, err := os.Stat(name); err != nil {
			t.Error(err)
		}
	}
	if names, _ := r.files(); len(names) != 2 {
		t.Errorf("files %q", names)
	}
}

// A limit that nothing reaches removes nothing, though its product is more than an int64 holds.
func TestLargestLimit(t *testing.T) {
	r := newPumpRig(t)
	r.limited(3)
	r.p.log.limit.FileBytes = math.MaxInt64
	old := r.p.log.path + ".20200101-000000"
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.p.log.Reopen(func() {}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err != nil {
		t.Error(err)
	}
}

// A rotation that fails is tried again at the next write. Until then the old file takes what comes,
// up to twice its size; then the log says how much is missing. The container is not held up.
func TestRotationFails(t *testing.T) {
	for _, cause := range []error{&os.PathError{Op: "open", Path: "x", Err: unix.EMFILE}, unix.EROFS} {
		t.Run(cause.Error(), func(t *testing.T) {
			r := newPumpRig(t)
			r.limited(2)
			keep := r.p.rotate
			r.p.rotate = func(int) error { return cause }
			lines := numbers(0, 6000)
			r.put(strings.Join(lines, ""))
			if names, sum := r.files(); len(names) != 1 || sum <= api.MinLogBytes || r.p.lost > 0 {
				t.Errorf("%q have %d bytes, %d are lost", names, sum, r.p.lost)
			}
			r.p.rotate = keep
			r.put("again\n")
			if names, _ := r.files(); len(names) != 2 || !slices.Equal(r.lines("stdout"), append(lines, "again\n")) {
				t.Errorf("files %q", names)
			}
			r.p.rotate = func(int) error { return cause }
			r.put(strings.Join(numbers(0, 20_000), ""))
			lost := r.p.lost
			if st, err := os.Stat(r.p.log.path); err != nil || st.Size() > 2*api.MinLogBytes || lost == 0 {
				t.Errorf("%v, %v, %d bytes lost", st, err, lost)
			}
			r.p.rotate = keep
			r.put("and again\n")
			got := r.lines("stdout")
			if want := []string{string(lostNote(lost)), "and again\n"}; !slices.Equal(got[len(got)-2:], want) {
				t.Errorf("log ends with %q", got[len(got)-2:])
			}
		})
	}
}

// A rotation that fails between its steps loses nothing and leaves nothing in the wrong order: the
// old file goes on under its new name until the next write.
func TestRotationFailsBetweenSteps(t *testing.T) {
	for name, step := range map[string]func(r *pumpRig) error{
		"renamed": func(r *pumpRig) error {
			_, err := setAside(r.p.log.path, time.Now())
			return err
		},
		"opened": func(r *pumpRig) error {
			if _, err := setAside(r.p.log.path, time.Now()); err != nil {
				return err
			}
			return os.WriteFile(r.p.log.path, nil, 0o640)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPumpRig(t)
			r.limited(3)
			log, failed := r.p.log, false
			r.p.rotate = func(n int) error {
				if failed {
					return log.rotate(n, func() {})
				}
				failed = true
				return errors.Join(step(r), unix.EIO)
			}
			lines := numbers(0, 6000)
			for part := range slices.Chunk(lines, 100) {
				r.put(strings.Join(part, ""))
			}
			if names, _ := r.files(); !failed || len(names) < 2 || r.p.lost > 0 || !slices.Equal(r.lines("stdout"), lines) {
				t.Errorf("failed: %t, files %q, %d bytes lost, %d lines", failed, names, r.p.lost, len(r.lines("stdout")))
			}
		})
	}
}

func TestLogLimitCheck(t *testing.T) {
	for l, ok := range map[Limit]bool{
		{}: true, {api.MinLogBytes, 2}: true, {api.MinLogBytes - 1, 2}: false, {api.MinLogBytes, 1}: false, {0, 2}: false, {-1, -1}: false,
	} {
		if err := l.Check(); (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// A shim killed in the middle of one stream's write, with lines of the other in the stage: the
// unfinished write is undone before the other stream's lines come behind it, and not again by the
// next shim.
func TestRecoverBothStreams(t *testing.T) {
	r := newPumpRig(t)
	r.put("first\n")
	other, err := openStage(filepath.Join(r.dir, "stderr.stage"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	m, err := markOf(r.p.log.f)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.mark(stageWriting, stageHeader, m); err != nil {
		t.Fatal(err)
	}
	if _, err := r.p.log.f.WriteString("2026-01-02T12:00:00.000000006Z stderr F half of a li"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fifo.WriteString("second\n"); err != nil {
		t.Fatal(err)
	}
	rawfd.With(r.p.pipe, func(fd int) { _, err = r.p.stage.fill(fd) })
	if err != nil {
		t.Fatal(err)
	}
	pumps := []*Pump{r.p, {stage: other, log: r.p.log, slog: r.p.slog, stream: "stderr", rate: &Rate{}}}
	for range 2 {
		if err := Recover(r.p.log, func() {}, pumps...); err != nil {
			t.Fatal(err)
		}
		for _, p := range pumps {
			p.write(new(pumpBuffers), keepRest)
		}
		if got := r.lines("stdout"); !slices.Equal(got, []string{"first\n", "second\n"}) {
			t.Errorf("lines %q", got)
		}
	}
}
