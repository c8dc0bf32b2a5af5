package ingest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
)

// A blob counts as arriving from its first byte on: a node that follows it waits only for so long.
func TestBlobWithoutFirstByteIsNotArriving(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "blob"))
	must(t, err)
	defer f.Close()
	var a arrivals
	what, s := Incoming{Blob: digest.FromString("x")}, newSpool(f)
	defer a.add(what, s)()
	if a.of(what) != nil {
		t.Error("a blob without a byte is arriving")
	}
	s.Arrived(1)
	if a.of(what) != s {
		t.Error("a blob with its first byte is not arriving")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
