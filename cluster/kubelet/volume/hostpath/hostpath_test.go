package hostpath

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file, sub, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "sub"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	for _, err := range []error{os.WriteFile(file, nil, 0o600), os.Mkdir(sub, 0o700), os.Symlink(sub, link), syscall.Mkfifo(fifo, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		path string
		kind v1.HostPathType
		fail string
	}{
		{dir + "/nothing", v1.HostPathUnset, ""},
		{sub, v1.HostPathDirectory, ""},
		{link, v1.HostPathDirectory, ""},
		{file, v1.HostPathDirectory, "is not a directory"},
		{file, v1.HostPathDirectoryOrCreate, "is not a directory"},
		{dir + "/new/dir", v1.HostPathDirectoryOrCreate, ""},
		{file, v1.HostPathFile, ""},
		{sub, v1.HostPathFile, "is not a file"},
		{fifo, v1.HostPathFile, "is not a file"},
		{dir + "/newfile", v1.HostPathFileOrCreate, ""},
		{dir + "/no/parent", v1.HostPathFileOrCreate, "no such file or directory"},
		{file, v1.HostPathSocket, "is not a socket file"},
		{"/dev/null", v1.HostPathCharDev, ""},
		{"/dev/null", v1.HostPathBlockDev, "is not a block device"},
		{dir + "/../x", v1.HostPathUnset, "must not contain '..'"},
		{file, "Odd", "Odd is an invalid volume type"},
	} {
		err := Check(&v1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%s as %q: %v, want %q", c.path, c.kind, err, c.fail)
		}
	}
}
