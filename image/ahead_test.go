package image

import (
	"bytes"
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
		a := readAhead(r)
		got, err := io.ReadAll(a)
		a.close()
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	broken := errors.New("broken")
	a := readAhead(io.MultiReader(bytes.NewReader(data), iotest.ErrReader(broken)))
	got, err := io.ReadAll(a)
	a.close()
	if !errors.Is(err, broken) || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	readAhead(bytes.NewReader(data)).close() // read by nobody
}
