package toc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/stargz-snapshotter/estargz"

	"github.com/coracle-project/coracle/internal/boundedjson"
)

// eachEntry calls f for the entries of a table in turn. They are not decoded all at once: an empty
// one is three bytes of the table and hundreds in memory, however many there are.
func eachEntry(table []byte, f func(*estargz.TOCEntry) error) error {
	d := json.NewDecoder(bytes.NewReader(table))
	if err := begin(d, '{'); err != nil {
		return err
	}
	found := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key != "entries" {
			var unknown json.RawMessage
			if err := d.Decode(&unknown); err != nil {
				return err
			}
			continue
		}
		if found {
			return errors.New("it has two lists of entries")
		}
		found = true
		if err := eachOf(d, f); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil { // its end
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something comes after it")
	}
	if !found {
		return errors.New("it has no entries")
	}
	return nil
}

// begin reads the beginning of an object or a list.
func begin(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err == nil && t != want {
		err = fmt.Errorf("found %v, want %v", t, want)
	}
	return err
}

func eachOf(d *json.Decoder, f func(*estargz.TOCEntry) error) error {
	if err := begin(d, '['); err != nil {
		return err
	}
	for i := 0; d.More(); i++ {
		if i == maxEntries {
			return fmt.Errorf("it has more than %d entries", maxEntries)
		}
		var text json.RawMessage
		var e *estargz.TOCEntry
		err := d.Decode(&text)
		if err == nil {
			err = boundedjson.Unmarshal(text, &e)
		}
		if err == nil && e == nil {
			err = errors.New("it is null")
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if err := f(e); err != nil {
			return fmt.Errorf("entry %d, %.200q: %w", i, e.Name, err)
		}
	}
	_, err := d.Token() // its end
	return err
}
