package image

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/coracle-project/coracle/image/blobs"
)

// rot changes a byte in the middle of a stored blob, as a disk does.
func (s *testStore) rot(t *testing.T, blob digest.Digest) {
	t.Helper()
	data, err := os.ReadFile(s.blobs.Path(blob))
	must(t, err)
	data[len(data)/2] ^= 0x55
	must(t, os.WriteFile(s.blobs.Path(blob), data, 0o644))
}

// Regression: a kept blob that had rotted was believed for its size, and its image could neither be
// pulled nor loaded again once the blob had to be read.
func TestRottenBlob(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(t *testing.T, s *testStore, diffID digest.Digest)
	}{
		{"layer lost", func(t *testing.T, s *testStore, diffID digest.Digest) {
			must(t, os.RemoveAll(s.layers.path(diffID)))
		}},
		{"ledger lost", func(t *testing.T, s *testStore, _ digest.Digest) {
			must(t, s.Close())
			must(t, os.Remove(s.blobs.LedgerFile()))
			s.Store = nil
			s.reopen(t)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, s := newFake(t), openStore(t, nil)
			p := r.image("app:1", threeLayers(), nil)
			_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			var saved bytes.Buffer
			must(t, s.Save(t.Context(), &saved, []string{r.ref("app:1")}, SaveOptions{}))
			for how, bring := range map[string]func() error{
				"pull": func() error { _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); return err },
				"load": func() error { _, err := s.Load(t.Context(), bytes.NewReader(saved.Bytes()), ""); return err },
			} {
				s.rot(t, p.layers[0])
				tc.lose(t, s, p.diffIDs[0])
				before := r.blobReads()
				if err := bring(); err != nil {
					t.Errorf("%s: %v", how, err)
				}
				if n := r.blobReads() - before; how == "pull" && n != 1 { // the layer
					t.Errorf("%s: %d blobs fetched", how, n)
				}
				v, err := s.Verify(t.Context(), VerifyOptions{})
				if err != nil || len(v.Damaged) != 0 || v.Blobs != 3 || v.Layers != 3 {
					t.Errorf("%s: %+v, %v", how, v, err)
				}
			}
		})
	}
}

// What is wrong with the image, and not with the disk, is not fetched again, and said as it was.
func TestWholeBlobOfAWrongLayer(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	good := gzipLayer(tarOf("f", "1"))
	p := r.image("app:1", []testLayer{good}, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	lie := good
	lie.tar = tarOf("another", "1")
	r.image("lie:1", []testLayer{lie}, nil)
	before := r.asked(string(p.layers[0]))
	_, err = s.Pull(t.Context(), r.ref("lie:1"), PullOptions{})
	if !errors.Is(err, ErrInvalidImage) || errors.Is(err, blobs.ErrRotten) || !strings.Contains(err.Error(), "its config says") {
		t.Errorf("error %v", err)
	}
	if n := r.asked(string(p.layers[0])) - before; n != 0 {
		t.Errorf("asked %d times for a blob that is there", n)
	}
}
