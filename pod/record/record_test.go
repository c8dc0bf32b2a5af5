package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/testkit/nofiles"
	"github.com/coracle-project/coracle/internal/transient"
)

type thing struct{ Name string }

func dir(t *testing.T) Dir[thing] {
	return Dir[thing]{Path: filepath.Join(t.TempDir(), "things"), Name: "thing.json", Version: 2}
}

func TestRoundTrip(t *testing.T) {
	d := dir(t)
	for i := range 20 {
		id := fmt.Sprint("id", i)
		if err := d.Make(id); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"first", id} {
			if err := d.Write(id, thing{name}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := d.Make("id3"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Make twice: %v", err)
	}
	if err := d.Remove("id3"); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove("id3"); err != nil {
		t.Errorf("Remove twice: %v", err)
	}
	l, err := d.LoadAll()
	if err != nil || len(l.Records) != 19 || len(l.Unread) != 0 {
		t.Fatalf("%d records, %d strays, %v", len(l.Records), len(l.Unread), err)
	}
	for id, v := range l.Records {
		if v.Name != id {
			t.Errorf("%s holds %q", id, v.Name)
		}
	}
}

func TestNothingThere(t *testing.T) {
	l, err := dir(t).LoadAll()
	if err != nil || len(l.Records)+len(l.Unread) != 0 {
		t.Errorf("got %+v, %v", l, err)
	}
}

func TestBadRecordsAreStray(t *testing.T) {
	d := dir(t)
	for id, content := range map[string]string{
		"empty": "", "cut": `{"version":1,"va`, "newer": `{"version":3}`, "none": `{}`, "not-json": "x", "wrong-type": `{"version":1,"value":7}`,
	} {
		if err := d.Make(id); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Of(id), d.Name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Make("no-record"); err != nil {
		t.Fatal(err)
	}
	l, err := d.LoadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Records) != 0 || len(l.Unread) != 7 {
		t.Fatalf("records %v, strays %v", l.Records, l.Unread)
	}
	if recordfile.Newer(l.Unread["newer"]) == nil || !errors.Is(l.Unread["no-record"], fs.ErrNotExist) {
		t.Errorf("reasons: %v", l.Unread)
	}
}

func TestWriteWithoutDirectory(t *testing.T) {
	if err := dir(t).Write("gone", thing{}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// Fields that a newer program added are still there after this one has rewritten the record.
func TestUnknownFieldsAreKept(t *testing.T) {
	d := dir(t)
	if err := d.Make("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.File("a"), []byte(`{"version":1,"added":true,"value":{"Name":"old","New":{"x":[1]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := d.LoadAll()
	if err != nil || l.Records["a"].Name != "old" {
		t.Fatalf("loaded %+v, %v", l, err)
	}
	for _, write := range []func(string, thing, *recordfile.Kept) error{d.Write, d.Overwrite} {
		if err := write("a", thing{Name: "changed"}, l.Kept["a"]); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(d.File("a"))
		if err != nil {
			t.Fatal(err)
		}
		var rec map[string]any
		if err := json.Unmarshal(got, &rec); err != nil {
			t.Fatal(err)
		}
		value, _ := rec["value"].(map[string]any)
		if rec["added"] != true || value["New"] == nil || value["Name"] != "changed" {
			t.Errorf("written: %s", got)
		}
	}
}

// Errors that say nothing of the record are told from those that do.
func TestTransient(t *testing.T) {
	d := dir(t)
	if err := errors.Join(d.Make("a"), d.Write("a", thing{}, nil)); err != nil {
		t.Fatal(err)
	}
	nofiles.Run(t, func() {
		if _, _, err := d.Load("a"); !errors.Is(err, unix.EMFILE) || !transient.Is(err) {
			t.Errorf("no descriptors: %v", err)
		}
	})
	if _, _, err := d.Load("a"); err != nil {
		t.Errorf("with descriptors: %v", err)
	}
	if err := errors.Join(os.Remove(d.File("a")), os.WriteFile(d.File("a"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Load("a"); err == nil || transient.Is(err) {
		t.Errorf("damaged: %v", err)
	}
}

// All records together are waited for half a second: a hundred that stayed unreadable held up a
// start for as many waits.
func TestWaitsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dir(t)
		var waits transient.Waits
		if err := errors.Join(d.Make("a"), d.Write("a", thing{}, nil)); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		nofiles.Run(t, func() {
			for range 100 {
				if _, _, err := d.load("a", &waits); !transient.Is(err) {
					t.Errorf("no descriptors: %v", err)
				}
			}
		})
		if took := time.Since(begin); took == 0 || took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// What is no file in a record's place, such as a FIFO that no one writes to, held up the start.
func TestFIFO(t *testing.T) {
	d := dir(t)
	if err := errors.Join(d.Make("a"), unix.Mkfifo(d.File("a"), 0o600)); err != nil {
		t.Fatal(err)
	}
	loaded := make(chan error, 1)
	go func() {
		l, err := d.LoadAll()
		if unread := l.Unread["a"]; err == nil && (!errors.Is(unread, recordfile.ErrDamaged) || transient.Is(unread)) {
			err = fmt.Errorf("unread: %w", unread)
		}
		loaded <- err
	}()
	select {
	case err := <-loaded:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for the FIFO")
	}
}

// A record is overwritten within the pages that it has, and not beyond.
func TestOverwriteStaysWithinPages(t *testing.T) {
	d := dir(t)
	if err := errors.Join(d.Make("a"), d.Write("a", thing{Name: strings.Repeat("x", 1000)}, nil)); err != nil {
		t.Fatal(err)
	}
	if err := d.Overwrite("a", thing{Name: "short"}, nil); err != nil {
		t.Fatal(err)
	}
	if v, _, err := d.Load("a"); err != nil || v.Name != "short" {
		t.Errorf("got %+v, %v", v, err)
	}
	if err := d.Overwrite("a", thing{Name: strings.Repeat("x", 1<<16)}, nil); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("beyond its pages: %v", err)
	}
	if v, _, err := d.Load("a"); err != nil || v.Name != "short" {
		t.Errorf("afterwards %+v, %v", v, err)
	}
}
