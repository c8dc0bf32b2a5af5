package privatedir

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMake(t *testing.T) {
	for name, tt := range map[string]struct {
		had  fs.FileMode // 0: there is none
		want fs.FileMode
	}{
		"new":              {0, 0o700},
		"private":          {0o700, 0o700},
		"of the group":     {0o710, 0o710},
		"setgid and group": {fs.ModeSetgid | 0o710, fs.ModeSetgid | 0o710},
		"all may pass":     {0o711, 0o700},
		"all may list":     {0o755, 0o700},
		"group may list":   {0o750, 0o700},
		"all may write":    {fs.ModeSetgid | 0o777, fs.ModeSetgid | 0o700},
		"too little":       {0o500, 0o700},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			if tt.had != 0 {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(dir, tt.had); err != nil { // whatever the umask is
					t.Fatal(err)
				}
			}
			if err := Make(dir); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode() &^ fs.ModeDir; got != tt.want {
				t.Errorf("mode %v, want %v", got, tt.want)
			}
		})
	}
}

// Whose directory it cannot be stays as it is.
func TestMakeRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(dir string) error
		want   string
	}{
		"shared":  {func(dir string) error { return os.Chmod(dir, fs.ModeSticky|0o777) }, "choose a directory of its own"},
		"another": {func(dir string) error { return os.Chown(dir, 65534, 0) }, "belongs to user 65534"},
		"a file": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "d"), nil, 0o600)
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(dir)
			if err != nil {
				t.Fatal(err)
			}
			if name == "a file" {
				dir = filepath.Join(dir, "d")
			}
			if err := Make(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Make: %v, want %q", err, tt.want)
			}
			if name != "a file" {
				if after, err := os.Stat(dir); err != nil || after.Mode() != before.Mode() {
					t.Errorf("mode is %v, was %v, %v", after.Mode(), before.Mode(), err)
				}
			}
		})
	}
}
