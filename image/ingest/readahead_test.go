package ingest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestReadAhead(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), aheadBytes/2)
	for name, r := range map[string]io.Reader{
		"whole":       bytes.NewReader(data),
		"byte pieces": iotest.HalfReader(bytes.NewReader(data)),
	} {
		h := sha256.New()
		a := readAhead(r, h)
		got, err := io.ReadAll(a)
		a.close()
		if err != nil || !bytes.Equal(got, data) || [sha256.Size]byte(h.Sum(nil)) != sha256.Sum256(data) {
			t.Errorf("%s: %d bytes, %v, hash %x", name, len(got), err, h.Sum(nil))
		}
	}
	broken := errors.New("broken")
	a := readAhead(io.MultiReader(bytes.NewReader(data), iotest.ErrReader(broken)), sha256.New())
	got, err := io.ReadAll(a)
	a.close()
	if !errors.Is(err, broken) || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	readAhead(bytes.NewReader(data), sha256.New()).close() // read by no one
}
