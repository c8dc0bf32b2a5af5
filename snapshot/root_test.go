package snapshot

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Regression: attributes and time of an image's root directory were lost on the way to the
// container's.
func TestDriverShowsTheRootAsTheTopLayerHasIt(t *testing.T) {
	eachDriver(t, func(t *testing.T, s *Store) {
		made := time.Unix(1e9, 5000)
		layers := commitLayers(t, s, 1)
		layers = append(layers, commitLayer(t, s, "top", func(dir string) {
			must(t, errors.Join(
				os.Chown(dir, 7, 8), unix.Chmod(dir, 0o1750), unix.Setxattr(dir, "user.note", []byte("hello"), 0), os.Chtimes(dir, made, made),
			))
		}))
		snap := prepared(t, s, "c", layers...)
		var st unix.Stat_t
		must(t, unix.Stat(snap.Target, &st))
		if at := time.Unix(st.Mtim.Unix()); st.Uid != 7 || st.Gid != 8 || st.Mode&0o7777 != 0o1750 || !at.Equal(made) {
			t.Errorf("%d:%d %o, made at %v", st.Uid, st.Gid, st.Mode, at)
		}
		value := make([]byte, 10)
		if n, err := unix.Getxattr(snap.Target, "user.note", value); err != nil || string(value[:n]) != "hello" {
			t.Errorf("attribute %q, %v", value, err)
		}

		var unchanged, changed bytes.Buffer
		must(t, s.Changes(t.Context(), "c", &unchanged))
		if h, err := tar.NewReader(&unchanged).Next(); err == nil {
			t.Errorf("changes of nothing have %q", h.Name)
		}
		must(t, unix.Setxattr(snap.Target, "user.note", []byte("bye"), 0))
		must(t, s.Changes(t.Context(), "c", &changed))
		h, err := tar.NewReader(&changed).Next()
		if err != nil || h.Name != "./" || h.Uid != 7 || h.PAXRecords[xattrRecord+"user.note"] != "bye" {
			t.Errorf("changes begin with %+v, %v", h, err)
		}
	})
}
