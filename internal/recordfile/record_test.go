package recordfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/transient"
)

type inner struct {
	PID  int        `json:"pid"`
	Exit *innermost `json:"exit,omitempty"`
}

type innermost struct {
	Code int       `json:"code"`
	At   time.Time `json:"at"`
}

type embedded struct {
	Kind string `json:"kind,omitempty"`
}

type sample struct {
	embedded
	Version int               `json:"version"`
	ID      string            `json:"id"`
	Flag    bool              `json:"flag,omitempty"`
	Process *inner            `json:"process,omitempty"`
	All     map[string]inner  `json:"all,omitempty"`
	List    []inner           `json:"list,omitempty"`
	Paths   map[string]string `json:"paths,omitempty"`
	Raw     json.RawMessage   `json:"raw,omitempty"`
	hidden  int
	Skipped int `json:"-"`
}

func TestUnknownFieldsOutliveARewrite(t *testing.T) {
	before := `{"version":1,"id":"a","new":{"x":[1,2]},"flag":true,"kind":"k",
	  "process":{"pid":7,"cgroup":"/c","exit":{"code":3,"at":"2026-01-02T15:04:05Z","core":true}},
	  "all":{"one":{"pid":1,"why":"?"}},"paths":{"cpu":"/x"},"raw":{"any":1},"Skipped":5,"hidden":6}`
	var s sample
	kept, err := Decode("f", []byte(before), 1, &s)
	if err != nil {
		t.Fatal(err)
	}
	s.ID, s.Flag, s.hidden = "b", false, 1
	after, err := kept.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":1,"id":"b","new":{"x":[1,2]},"kind":"k",
	  "process":{"pid":7,"cgroup":"/c","exit":{"code":3,"at":"2026-01-02T15:04:05Z","core":true}},
	  "all":{"one":{"pid":1,"why":"?"}},"paths":{"cpu":"/x"},"raw":{"any":1},"Skipped":5,"hidden":6}`
	same(t, after, want)
	if !bytes.HasPrefix(after, []byte(`{"kind":"k","version":1,"id":"b",`)) {
		t.Errorf("order of fields: %s", after)
	}
	// A field that the program removes goes with everything in it.
	s.Process = nil
	if after, err = kept.Marshal(&s); err != nil || strings.Contains(string(after), "cgroup") {
		t.Errorf("without the process: %s, %v", after, err)
	}
}

func same(t *testing.T, got []byte, want string) {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal([]byte(want), &b)); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("record\n%s\nwant\n%s", got, want)
	}
}

func TestNothingUnknownIsNil(t *testing.T) {
	var s sample
	kept, err := Decode("f", []byte(`{"version":1,"ID":"a","process":{"pid":1}}`), 1, &s)
	if err != nil || kept != nil || s.ID != "a" {
		t.Errorf("kept %+v, %v", kept, err)
	}
	if b, err := kept.Marshal(&s); err != nil || string(b) != `{"version":1,"id":"a","process":{"pid":1}}` {
		t.Errorf("%s, %v", b, err)
	}
}

func TestVersions(t *testing.T) {
	for text, want := range map[string]string{
		`{"version":1}`:                "",
		`{"version":2,"id":{"new":1}}`: "newer",
		`{"version":0}`:                "damaged",
		`{"version":-1}`:               "damaged",
		`{}`:                           "damaged",
		`{"version":1,"id":5}`:         "damaged",
		`{"version":1,`:                "damaged",
		``:                             "damaged",
		`null`:                         "damaged",
		"\x00\x00\x00":                 "damaged",
	} {
		var s sample
		_, err := Decode("f", []byte(text), 1, &s)
		got := ""
		switch {
		case Newer(err) != nil:
			got = "newer"
		case errors.Is(err, ErrDamaged):
			got = "damaged"
		case err != nil:
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q (%v), want %q", text, got, err, want)
		}
	}
}

// A file that is not a record must neither hang the reader nor count as a temporary failure.
func TestReadWhatIsNoRecord(t *testing.T) {
	dir := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link":      func(path string) error { return os.Symlink("/dev/zero", path) },
		"large": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, maxSize+1))
		},
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); !errors.Is(err, ErrDamaged) || transient.Is(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Read(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestTransient(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if err := fmt.Errorf("read: %w", &fs.PathError{Err: errno}); !transient.Is(err) {
			t.Errorf("%v is not transient", err)
		}
	}
	for _, err := range []error{nil, ErrDamaged, fs.ErrNotExist, &NewerError{}} {
		if transient.Is(err) {
			t.Errorf("%v is transient", err)
		}
	}
}

// For any input, the output is JSON, has the program's fields as they were set, and has every
// unknown field of the top level.
func FuzzKept(f *testing.F) {
	for _, s := range []string{
		`{"version":1,"id":"a","new":1}`, `{"version":1,"process":{"x":{}},"y":null}`, `{"version":1,"ID":"x","iD":2}`,
		`{"version":1,"all":{"a":{"b":1},"c":null}}`, `{"version":1,"a":1,"A":2,"process":null,"raw":{"k":1}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var s sample
		kept, err := Decode("f", data, 1, &s)
		if err != nil {
			return
		}
		s.ID = "changed"
		out, err := kept.Marshal(&s)
		if err != nil {
			return // a RawMessage may be invalid
		}
		var back sample
		if _, err := Decode("f", out, 1, &back); err != nil {
			t.Fatalf("%q became %q: %v", data, out, err)
		}
		if back.ID != "changed" || back.Version != s.Version || back.Flag != s.Flag || back.Kind != s.Kind {
			t.Errorf("%q became %q", data, out)
		}
		var before, after map[string]json.RawMessage
		if json.Unmarshal(data, &before) != nil || json.Unmarshal(out, &after) != nil {
			t.Fatalf("%q became %q", data, out)
		}
		fields := fieldsOf(reflect.TypeFor[sample]())
		for name := range before {
			known := false
			for field := range fields {
				known = known || strings.EqualFold(field, name)
			}
			if !known && !hasFold(after, name) {
				t.Errorf("%q lost %q: %q", data, name, out)
			}
		}
	})
}
