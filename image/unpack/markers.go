package unpack

import (
	"github.com/coracle-project/coracle/internal/safepath"
)

// Markers are how an unpacked layer says what it hides of the layers beneath.
type Markers int

// The forms of markers.
const (
	// OverlayMarkers are overlayfs': a hidden name is a character device 0/0, a directory
	// that hides all beneath it carries trusted.overlay.opaque=y.
	OverlayMarkers Markers = iota
	// FileMarkers are the archive's own: empty files .wh.NAME and .wh..wh..opq. Any
	// file system can hold them, and one may lie next to what the layer itself
	// has under that name.
	FileMarkers
)

// mark makes an empty file that says something; again is fine.
func (u *unpacker) mark(d *safepath.Dir, base string) error {
	f, err := d.Create(base, 0o600)
	if isExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}
