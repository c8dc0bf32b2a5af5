package ingest

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/blobs"
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
	follows, err := s.Follow(t.Context())
	must(t, err)
	defer follows.Close()
	if n, err := io.Copy(io.Discard, struct{ io.Reader }{p}); err != nil || n != 2*passCheck {
		t.Errorf("the layer has %d bytes, %v", n, err)
	}
	if _, err := io.Copy(io.Discard, follows); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("another node is told %v", err)
	}
	p.Finish(nil)
	p.Close()
	if _, err := os.Stat(f.Name()); !errors.Is(err, os.ErrNotExist) || ended != 1 {
		t.Errorf("the file: %v, ended %d times", err, ended)
	}
}

// Another node does not get all of what arrives before this one knows that it is right: it would
// leave this one alone for the bytes of a third.
func TestWrongBytesAreNotPassedOnWhole(t *testing.T) {
	files := blobs.New(t.TempDir(), false)
	_, err := files.Create()
	must(t, err)
	u := New(Options{Blobs: files, Log: slog.New(slog.DiscardHandler)})
	p := u.Pass(strings.NewReader("archive"), Incoming{digest.FromString("blob"), digest.FromString("layer")}, 7, 0)
	defer p.Close()
	_, err = p.Read(make([]byte, 7))
	must(t, err)
	r, err := p.s.Follow(t.Context())
	must(t, err)
	defer r.Close()
	buf := make([]byte, 7)
	if n, err := r.Read(buf); err != nil || string(buf[:n]) != "archiv" {
		t.Errorf("%q is passed on, %v", buf[:n], err)
	}
	wrong := errors.New("another digest")
	p.Finish(wrong)
	if n, err := r.Read(buf); n != 0 || !errors.Is(err, wrong) {
		t.Errorf("%q is passed on at the end, %v", buf[:n], err)
	}
}
