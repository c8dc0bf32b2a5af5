package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/snapshot/diff"
)

// overlayfs is the driver Overlay: it mounts layers' directories with overlayfs.
type overlayfs struct {
	root string   // the store's
	api  mountAPI // set by Probe
}

func (d *overlayfs) Markers() Markers { return OverlayMarkers }

func (d *overlayfs) Seal(context.Context, string) error { return nil }

func (d *overlayfs) View(_ context.Context, dir string) (string, error) { return FilesIn(dir), nil }

func (d *overlayfs) Free(string) error { return nil }

func (d *overlayfs) Mount(_ context.Context, r Rootfs) error {
	lower := make([]string, 0, len(r.Layers))
	for _, dir := range slices.Backward(r.Layers) {
		lower = append(lower, FilesIn(dir))
	}
	return d.stack(lower, r)
}

// stack mounts the lower directories, uppermost first, with a new writable one above.
func (d *overlayfs) stack(lower []string, r Rootfs) error {
	work := filepath.Join(r.Dir, "work")
	for _, dir := range []string{work, r.upper()} {
		if err := os.RemoveAll(dir); err != nil { // untouched, from a mount that did not come to be
			return err
		}
	}
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if len(lower) == 0 {
		lower = []string{filepath.Join(d.root, EmptyDir)}
	}
	o := overlay{lower: lower, upper: r.upper(), work: work, label: r.Label}
	if err := os.Mkdir(r.upper(), 0o755); err != nil {
		return err
	}
	// The root of an overlay shows the upper directory's own attributes: they are to be those of
	// the layer that would show without it.
	if err := diff.LikeRoot(r.upper(), lower[0]); err != nil {
		return err
	}
	if r.Users == nil {
		return o.mount(r, d.api)
	}
	fd := -1
	err := whereMapped(d.root, r.Users, r.IDs, func() (err error) {
		fd, err = o.take(r, d.api)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return attach(fd, r)
}

func (d *overlayfs) Unmount(target string) error { return unmountOverlay(target) }

func (d *overlayfs) Untouched(r Rootfs) (bool, error) {
	entries, err := os.ReadDir(r.upper())
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return len(entries) == 0, err
}

func (d *overlayfs) Mounts(snapshots string) (map[string][]string, error) {
	found := map[string][]string{}
	_, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		if m.FSType != "overlay" {
			return true, false
		}
		if dir, ok := strings.CutPrefix(filepath.Dir(upperOf(m.VFSOptions)), snapshots+"/"); ok {
			found[dir] = append(found[dir], m.Mountpoint)
		}
		return true, false
	})
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return found, nil
}

// upperOf finds the upper directory in an overlay's options.
func upperOf(options string) string {
	for o := range strings.SplitSeq(options, ",") {
		if upper, ok := strings.CutPrefix(o, "upperdir="); ok {
			return unescape(upper)
		}
	}
	return ""
}

// unescape undoes the kernel's \ooo for blanks in /proc files (seq_path_root(3)).
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1:i+4]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(s string) bool {
	return strings.Trim(s, "01234567") == "" && s[0] <= '3'
}

// Changes of an overlay are its upper directory.
func (d *overlayfs) Changes(ctx context.Context, r Rootfs, to *diff.Writer) error {
	top := filepath.Join(d.root, EmptyDir)
	if n := len(r.Layers); n > 0 {
		top = FilesIn(r.Layers[n-1])
	}
	return to.Upper(ctx, r.upper(), top)
}
