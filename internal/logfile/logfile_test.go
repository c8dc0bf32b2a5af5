package logfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// all returns the content of a log from its oldest line on, and how many files it is in.
func all(t *testing.T, path string) (string, int) {
	t.Helper()
	var text strings.Builder
	files := 0
	for i := Kept; i >= 0; i-- {
		name := aside(path, i)
		if i == 0 {
			name = path
		}
		content, err := os.ReadFile(name)
		if err != nil {
			if i == 0 {
				t.Fatal(err)
			}
			continue
		}
		files++
		text.Write(content)
	}
	return text.String(), files
}

func TestNoLineIsLostAndNoneIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := open(path, 100, Kept)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := "before\n"
	for i := range 30 { // of 10 bytes, each in two writes
		line := fmt.Sprintf("line %4d\n", i)
		for _, part := range []string{line[:3], line[3:]} {
			if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		want += line
	}
	got, files := all(t, path)
	if got != want || files != 4 {
		t.Errorf("%d files with %q", files, got)
	}
	for i := range Kept {
		content, err := os.ReadFile(aside(path, i+1))
		if err != nil || len(content) < 100 || content[len(content)-1] != '\n' {
			t.Errorf("file %d: %q, %v", i+1, content, err)
		}
		if info, err := os.Stat(aside(path, i+1)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("file %d: %v, %v", i+1, info, err)
		}
	}
	for i := range 20 {
		fmt.Fprintf(l, "line %4d\n", 30+i)
	}
	got, files = all(t, path)
	if files != 4 || strings.HasPrefix(got, "before") || !strings.HasSuffix(got, "line   49\n") {
		t.Errorf("the oldest is to go: %d files with %q", files, got)
	}
	if err := Remove(path); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestOthersGoOnWritingToTheSameFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	other, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, err := open(path, 10, Kept)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fmt.Fprintln(l, "a long line, after which it is set aside")
	fmt.Fprintln(other, "of another")
	if content, err := os.ReadFile(path); err != nil || string(content) != "of another\n" {
		t.Errorf("%q, %v", content, err)
	}
}

func TestManyWritersAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := open(path, 5000, Kept)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			for range 150 {
				fmt.Fprintln(l, "nine char")
			}
		})
	}
	wg.Wait()
	got, _ := all(t, path)
	if got != strings.Repeat("nine char\n", 1500) {
		t.Errorf("%d lines", strings.Count(got, "\n"))
	}
}

func TestALogThatCannotBeSetAsideGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := open(path, 10, Kept)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.MkdirAll(filepath.Join(aside(path, 1), "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(aside(path, 2), "too"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(aside(path, 3), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(l, "a line that is long enough")
	fmt.Fprintln(l, "another")
	content, err := os.ReadFile(path)
	if err != nil || !strings.HasPrefix(string(content), "a line that is long enough\nthe log could not be set aside: ") ||
		!strings.HasSuffix(string(content), "another\n") {
		t.Errorf("%q, %v", content, err)
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	if _, err := Open("/dev/null"); err == nil || !strings.Contains(err.Error(), "/dev/null is not a regular file") {
		t.Error(err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "no", "dir")); err == nil {
		t.Error(fs.ErrNotExist)
	}
}
