package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TestMountByOptionString makes roots as a kernel without the option lowerdir+ has to: one page has
// the names of all layers.
func TestMountByOptionString(t *testing.T) {
	root := t.TempDir()
	d := &overlayfs{root: root, api: byString}
	if err := d.try(t.TempDir()); err != nil {
		t.Error(err)
	}
	var layers []string // layer i has the files "i" and "top", both saying i
	for i := range 130 {
		dir := filepath.Join(root, "layers", "sha256", fmt.Sprintf("%064d", i))
		must(t, os.MkdirAll(FilesIn(dir), 0o755))
		for _, name := range []string{fmt.Sprint(i), "top"} {
			must(t, os.WriteFile(filepath.Join(FilesIn(dir), name), []byte(fmt.Sprint(i)), 0o644))
		}
		layers = append(layers, dir)
	}
	users := Users{UIDs: []IDMap{{Host: 200000, Length: 10}}, GIDs: []IDMap{{Host: 300000, Length: 10}}}
	for name, tc := range map[string]struct {
		layers int
		users  Users
		access Access
	}{
		"few":         {layers: 3},
		"few-mapped":  {layers: 3, users: users, access: ReadOnly},
		"many":        {layers: 130},
		"many-mapped": {layers: 130, users: users},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, "snapshots", name)
			must(t, os.MkdirAll(dir, 0o700))
			r := Rootfs{Dir: dir, Layers: layers[:tc.layers], Target: t.TempDir(), Access: tc.access, IDs: tc.users}
			var err error
			r.Users, err = tc.users.Open()
			must(t, err)
			if r.Users != nil {
				defer r.Users.Close()
			}
			must(t, d.Mount(t.Context(), r))
			defer func() { must(t, d.Unmount(r.Target)) }()
			for file, want := range map[string]string{"top": fmt.Sprint(tc.layers - 1), "0": "0"} {
				if got, err := os.ReadFile(filepath.Join(r.Target, file)); err != nil || string(got) != want {
					t.Errorf("%s says %q, %v, want %s", file, got, err, want)
				}
			}
			var st unix.Stat_t
			must(t, unix.Stat(filepath.Join(r.Target, "top"), &st))
			if r.Users != nil && (st.Uid != 200000 || st.Gid != 300000) {
				t.Errorf("mapped ids: %d:%d", st.Uid, st.Gid)
			}
			if tc.access == ReadOnly {
				at, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(r.Target))
				if err != nil || len(at) != 1 || !strings.Contains(at[0].Options, "ro") || !strings.Contains(at[0].Options, "nosuid") {
					t.Errorf("mounted %v, %v, want read-only", at, err)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
