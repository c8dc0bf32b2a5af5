package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
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
			if err := d.Write(id, thing{name}); err != nil {
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
	if !errors.Is(l.Unread["newer"], ErrVersion) || !errors.Is(l.Unread["no-record"], fs.ErrNotExist) {
		t.Errorf("reasons: %v", l.Unread)
	}
}

func TestWriteWithoutDirectory(t *testing.T) {
	if err := dir(t).Write("gone", thing{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
