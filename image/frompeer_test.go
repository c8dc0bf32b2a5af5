package image

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Regression: what was kept for other nodes filled the file system that the layer itself needed,
// when others had taken the space that was there at the start.
func TestPassingOnLeavesSpaceForTheLayer(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "blob"))
	must(t, err)
	s, ended := newSpool(f), 0
	s.whole = 1 << 60 // more than there is
	p := &passing{
		r: strings.NewReader(strings.Repeat("a", 2*passCheck)), s: s, minFree: 1, log: slog.New(slog.DiscardHandler), end: func() { ended++ },
	}
	follows, err := s.follow(t.Context())
	must(t, err)
	defer follows.Close()
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{p}); err != nil || n != 2*passCheck {
		t.Errorf("the layer has %d bytes, %v", n, err)
	}
	if _, err := io.Copy(io.Discard, follows); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("another node is told %v", err)
	}
	p.finish(nil)
	p.close()
	if _, err := os.Stat(f.Name()); !errors.Is(err, os.ErrNotExist) || ended != 1 {
		t.Errorf("the file: %v, ended %d times", err, ended)
	}
}
