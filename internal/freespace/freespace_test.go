package freespace

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestKeep(t *testing.T) {
	for name, c := range map[string]struct {
		left, n, keep int64
		fits          bool
	}{
		"fits":           {left: 10, n: 4, keep: 5, fits: true},
		"to the byte":    {left: 10, n: 5, keep: 5, fits: true},
		"a byte more":    {left: 10, n: 6, keep: 5},
		"nothing more":   {left: 4, n: 0, keep: 5},
		"more than kept": {left: 10, n: math.MaxInt64, keep: 5},
		"all is kept":    {left: 10, n: 1, keep: math.MaxInt64},
	} {
		err := Keep("/here", c.left, c.n, c.keep)
		if (err == nil) != c.fits || err != nil && (!errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/here")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of follows the file, At the path.
func TestWhere(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := At(f.Name()); err != nil || n <= 0 {
		t.Errorf("at the file: %d, %v", n, err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if n, err := Of(f); err != nil || n <= 0 {
		t.Errorf("of the deleted file: %d, %v", n, err)
	}
	if _, err := At(f.Name()); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), f.Name()) {
		t.Errorf("at no file: %v", err)
	}
}
