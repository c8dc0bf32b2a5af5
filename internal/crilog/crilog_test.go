package crilog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const stamp = "2026-01-02T03:04:05.678901234Z"

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, record, text, err string
		partial                 bool
	}{
		{name: "whole", record: stamp + " stdout F hello  world", text: "hello  world"},
		{name: "part", record: stamp + " stderr P abc", text: "abc", partial: true},
		{name: "empty", record: stamp + " stdout F ", text: ""},
		{name: "empty without space", record: stamp + " stdout F", text: ""},
		{name: "tags to come", record: stamp + " stdout P:x:y abc", text: "abc", partial: true},
		{name: "zone", record: "2026-01-02T03:04:05+02:00 stdout F x", text: "x"},
		{name: "nothing", record: "", err: "TIME STREAM TAG TEXT"},
		{name: "json", record: `{"log":"x\n","stream":"stdout"}`, err: "TIME STREAM TAG TEXT"},
		{name: "time", record: "yesterday stdout F x", err: `"yesterday" is no time`},
		{name: "stream", record: stamp + " stdin F x", err: "neither stdout nor stderr"},
		{name: "tag", record: stamp + " stdout X x", err: "neither F nor P"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := Parse([]byte(tc.record))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want %q in it", err, tc.err)
				}
				return
			}
			if err != nil || string(l.Text) != tc.text || l.Partial != tc.partial {
				t.Errorf("%+v, %v", l, err)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(stamp + " stdout F hello"))
	f.Add([]byte(stamp + " stderr P:a:b hello"))
	f.Add([]byte("  "))
	f.Fuzz(func(t *testing.T, record []byte) {
		l, err := Parse(record)
		if err == nil && (l.Stream != Stdout && l.Stream != Stderr || len(l.Text) > len(record)) {
			t.Errorf("%q is %+v", record, l)
		}
	})
}

// record is the n-th second's record.
func record(n int, tag, text string) string {
	return fmt.Sprintf("2026-01-02T03:04:%02dZ stdout %s %s\n", n, tag, text)
}

func second(n int) time.Time { return time.Date(2026, 1, 2, 3, 4, n, 0, time.UTC) }

func write(t *testing.T, path string, records ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(strings.Join(records, "")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"), record(2, "P", "b1"), record(3, "F", "b2"), record(4, "F", "c"),
		"2026-01-02T03:04:05Z stderr P d1\n", record(5, "F", "e"), "2026-01-02T03:04:06Z stderr F d2\n", "2026-01-02T03:04:07Z st")
	for _, tc := range []struct {
		name  string
		tail  int
		since time.Time
		want  string
	}{
		{name: "all", tail: -1, want: "a b1 b2 c d1 e d2"},
		{name: "none", tail: 0, want: ""},
		{name: "last line", tail: 1, want: "e d2"},
		{name: "a line of two records is one", tail: 4, want: "b1 b2 c d1 e d2"},
		{name: "more than there are", tail: 100, want: "a b1 b2 c d1 e d2"},
		{name: "since", tail: -1, since: second(4), want: "c d1 e d2"},
		{name: "both", tail: 2, since: second(4), want: "d1 e d2"},
		{name: "since the future", tail: 2, since: second(50), want: ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			err := Read(t.Context(), path, Options{Tail: tc.tail, Since: tc.since}, func(l Line) error {
				got = append(got, string(l.Text))
				return nil
			})
			if s := strings.Join(got, " "); err != nil || s != tc.want {
				t.Errorf("%q, %v; want %q", s, err, tc.want)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	sink := func(Line) error { return nil }
	if err := Read(t.Context(), path, Options{Tail: -1}, sink); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(t, path, record(1, "F", "a"), "what is this\n")
	if err := Read(t.Context(), path, Options{Tail: -1}, sink); err == nil || !strings.Contains(err.Error(), "log:2: ") {
		t.Errorf("bad record: %v", err)
	}
	long := filepath.Join(dir, "long")
	write(t, long, strings.Repeat("x", 4<<20+1))
	if err := Read(t.Context(), long, Options{Tail: -1}, sink); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("endless record: %v", err)
	}
	stop := errors.New("stop")
	if err := Read(t.Context(), path, Options{Tail: -1}, func(Line) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a sink's error: %v", err)
	}
}

func TestLastRecordsOnLargeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var all strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&all, "%06d\n", i)
	}
	write(t, path, all.String())
	r, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, n := range []int{1, 2, 2340, 2341, 5000, 8999, 9000, 9001} {
		if at, err := r.lastRecords(n); err != nil || at != int64(7*max(9000-n, 0)) {
			t.Errorf("%d records begin at %d, %v", n, at, err)
		}
	}
}

// A record that does not fit the buffer comes in pieces, of which only the last ends the line.
func TestReadInPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 200<<10)
	write(t, path, record(1, "F", "a"), record(2, "F", long), record(3, "F", "b"))
	var lines []string
	open := ""
	err := Read(t.Context(), path, Options{Tail: 2}, func(l Line) error {
		if open += string(l.Text); !l.Partial {
			lines, open = append(lines, open), ""
		}
		return nil
	})
	if err != nil || len(lines) != 2 || lines[0] != long || lines[1] != "b" || open != "" {
		t.Errorf("%d lines, %d bytes more, %v", len(lines), len(open), err)
	}
}

// following reads a log and sends each text; the returned function ends it as the end of the
// container would.
func following(t *testing.T, path string) (texts <-chan string, end func() error) {
	t.Helper()
	out, ended, result := make(chan string), make(chan struct{}), make(chan error, 1)
	go func() {
		result <- Read(t.Context(), path, Options{Tail: -1, Ended: ended}, func(l Line) error {
			out <- string(l.Text)
			return nil
		})
		close(out)
	}()
	return out, func() error { close(ended); return <-result }
}

func want(t *testing.T, texts <-chan string, all ...string) {
	t.Helper()
	for _, w := range all {
		if got := <-texts; got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
	}
}

func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"))
	texts, end := following(t, path)
	want(t, texts, "a")
	write(t, path, record(2, "F", "b"), "2026-01-02T03:04:03Z stdout")
	want(t, texts, "b")
	write(t, path, " F c\n")
	want(t, texts, "c")

	// The writer goes on with the old file until it has made the new one.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".1", record(4, "F", "d"))
	want(t, texts, "d")
	write(t, path+".1", record(5, "F", "e"))
	write(t, path, record(6, "F", "f"))
	want(t, texts, "e", "f")

	// Twice at once.
	for i, name := range []string{".2", ".3"} {
		if err := os.Rename(path, path+name); err != nil {
			t.Fatal(err)
		}
		write(t, path, record(7+i, "F", name))
		want(t, texts, name)
	}

	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	write(t, path, record(9, "F", "g"))
	want(t, texts, "g")
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestFollowReadsWhatCameLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"))
	ended := make(chan struct{})
	close(ended)
	var got []string
	err := Read(t.Context(), path, Options{Tail: -1, Ended: ended}, func(l Line) error {
		if len(got) == 0 {
			write(t, path, record(2, "F", "b"))
		}
		got = append(got, string(l.Text))
		return nil
	})
	if err != nil || strings.Join(got, "") != "ab" {
		t.Errorf("%q, %v", got, err)
	}
}

// A reader that is held up while the log is rotated more than once misses nothing.
func TestFollowManyRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"), record(1, "F", "held up"))
	texts, end := following(t, path)
	want(t, texts, "a")
	for i, name := range []string{"b", "c", "d"} {
		old := path + ".2026-" + name
		if err := os.Rename(path, old); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(old, second(i), second(i)); err != nil {
			t.Fatal(err)
		}
		write(t, path, record(2+i, "F", name))
	}
	write(t, path+".2026-a.gz", "packed")
	want(t, texts, "held up", "b", "c", "d")
	if err := end(); err != nil {
		t.Error(err)
	}
}

// Regression: while a reader looks which file comes next, another rotation renames that one away
// and makes a new one of its name.
func TestSuccessorIsTheFileThatWasFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"))
	found, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path, record(2, "F", "b"))
	if r, err := openSame(path, found); r != nil || err != nil {
		t.Errorf("the file after it was opened: %v, %v", r, err)
	}
	r, err := openSame(path+".1", found)
	if r == nil || err != nil {
		t.Fatalf("the file that was found was not opened: %v", err)
	}
	r.close()
}

// Regression: a file that was last written within the same tick of the clock as the one before it
// was left out.
func TestFilesOfOneTickFollowEachOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	names := []string{path + ".20260102-030405", path + ".20260102-030406", path + ".20260102-030407"}
	for _, name := range names {
		write(t, name, record(1, "F", "a"))
		if err := os.Chtimes(name, second(1), second(1)); err != nil {
			t.Fatal(err)
		}
	}
	var files []fs.FileInfo
	for _, name := range names {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, st)
	}
	after := func(i int, want string) {
		t.Helper()
		if next, _, err := setAside(files[i], path); next != want || err != nil {
			t.Errorf("after %s comes %q, %v", names[i], next, err)
		}
	}
	for i, want := range []string{names[1], names[2], ""} {
		after(i, want)
	}
	if err := os.Remove(names[0]); err != nil {
		t.Fatal(err)
	}
	after(0, names[1]) // a reader has the file that its writer has removed
}

// The container ends while its log is renamed away and the new file is not made yet. A reader that
// is behind goes on with what was set aside after its file.
func TestFollowToWhatWasSetAsideLast(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"))
	ended := make(chan struct{})
	var got []string
	err := Read(t.Context(), path, Options{Tail: -1, Ended: ended}, func(l Line) error {
		if got = append(got, string(l.Text)); len(got) == 1 {
			if err := os.Remove(path); err != nil {
				return err
			}
			write(t, path+".1", record(2, "F", "b"))
			later := time.Now().Add(time.Second) // as it is when files do not follow each other within one tick
			if err := os.Chtimes(path+".1", later, later); err != nil {
				return err
			}
			close(ended)
		}
		return nil
	})
	if err != nil || strings.Join(got, "") != "ab" {
		t.Errorf("%q, %v", got, err)
	}
}

// A follower that starts between the two halves of a rotation waits for the new file.
func TestFollowBeginsInARotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	changed, ended, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	open := func() {
		r, err := await(t.Context(), path, &watcher{changed: changed}, ended)
		if err == nil {
			r.close()
		}
		result <- err
	}
	go open()
	changed <- struct{}{} // taken by a waiting follower, which finds nothing,
	changed <- struct{}{} // as it does when it takes the next one
	write(t, path, record(1, "F", "a"))
	var err error
	select { // it may find the file before it is told
	case changed <- struct{}{}:
		err = <-result
	case err = <-result:
	}
	if err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	close(ended)
	if open(); !errors.Is(<-result, os.ErrNotExist) {
		t.Error("a container that has ended without a log has one")
	}
}

func TestFollowEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, path, record(1, "F", "a"))
	ctx, cancel := context.WithCancel(t.Context())
	err := Read(ctx, path, Options{Tail: -1, Ended: make(chan struct{})}, func(Line) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The last record is longer than the reader's buffer, and its end is not written yet.
func TestFollowFromALongRecordThatIsNotWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 70<<10)
	write(t, path, record(1, "F", "a"), strings.TrimSuffix(record(2, "F", long), "\n"))
	ended, wrote := make(chan struct{}), false
	var text strings.Builder
	idle := func() error {
		if !wrote {
			wrote = true
			write(t, path, "y\n", record(3, "F", "b"))
			close(ended)
		}
		return nil
	}
	err := Read(t.Context(), path, Options{Ended: ended, Idle: idle}, func(l Line) error {
		text.Write(l.Text)
		return nil
	})
	if got := text.String(); err != nil || !wrote || got != long+"yb" {
		t.Errorf("%d bytes, %v; written: %v", len(got), err, wrote)
	}
}

// A follower whose watch fails says so: it would not notice what is written.
func TestFollowEndsWithItsWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := &watcher{changed: make(chan struct{}, 1), done: make(chan struct{})}
	var err error
	if w.file, err = os.Open(t.TempDir()); err != nil { // a directory cannot be read
		t.Fatal(err)
	}
	go w.read()
	defer w.close()
	o := Options{Tail: -1, Ended: make(chan struct{})}
	for _, state := range []string{"no log", "a log"} {
		err := follow(t.Context(), path, w, o, func(Line) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), "log: watch for changes: ") {
			t.Errorf("%s: the error is %v", state, err)
		}
		write(t, path, record(1, "F", "a"))
	}
}
