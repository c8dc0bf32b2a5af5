package safepath

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opens counts how often a file has been opened for reading or writing since the last call.
func opens(t *testing.T, path string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
	must(t, err)
	return func() int {
		buf, n := make([]byte, 64<<10), 0
		for {
			got, err := unix.Read(fd, buf)
			if err == unix.EAGAIN {
				return n
			}
			must(t, err)
			n += got / unix.SizeofInotifyEvent
		}
	}
}

// TestAttackDeviceSwap exchanges a file for a device between any two steps of opening it. A check
// of the kind by name is overtaken; OpenRegular and OpenRegularAt never open the device.
func TestAttackDeviceSwap(t *testing.T) {
	root, dir, _ := tree(t)
	file, other := filepath.Join(dir, "flip"), filepath.Join(dir, "other")
	must(t, os.WriteFile(file, []byte("inside"), 0o600))
	must(t, unix.Mknod(other, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))))
	opened := opens(t, other)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	d, err := os.Open(dir)
	must(t, err)
	defer d.Close()
	attempts := map[string]func() (*os.File, error){
		"OpenRegular":   func() (*os.File, error) { return root.OpenRegular("flip") },
		"OpenRegularAt": func() (*os.File, error) { return OpenRegularAt(int(d.Fd()), "flip") },
	}
	late := time.Now().Add(time.Minute)
	for beaten, files := 0, 0; beaten < 20 || files < 20; {
		if time.Now().After(late) {
			t.Fatalf("in a minute, a check by name was overtaken %d times, and the file was opened %d times: want 20", beaten, files)
		}
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
			if f, err := os.Open(file); err == nil {
				f.Close()
			}
		}
		beaten += opened()
		for name, open := range attempts {
			if f, err := open(); err == nil {
				files++
				f.Close()
			}
			if n := opened(); n > 0 {
				t.Fatalf("%s opened the device", name)
			}
		}
	}
}

// Reading some of the files of proc takes what they say from the host, and their size is 0.
func TestFilesOfProcAreNotRead(t *testing.T) {
	root, err := Open("/proc")
	must(t, err)
	defer root.Close()
	if data, err := root.ReadFile("version", 1<<10); err != nil || len(data) > 0 {
		t.Errorf("read %q, %v", data, err)
	}
}

// A file whose size is not what stat said is read whole, up to the limit.
func TestReadFileOfAnySize(t *testing.T) {
	root, dir, _ := tree(t)
	for _, size := range []int64{0, 1, 511, 512, 513, 4096, 1 << 20} {
		must(t, os.WriteFile(filepath.Join(dir, "sized"), make([]byte, size), 0o600))
		for limit, fits := range map[int64]bool{size: true, size + 1: true, 1 << 30: true, size / 2: size == 0} {
			if data, err := root.ReadFile("sized", limit); (err == nil) != fits || fits && int64(len(data)) != size {
				t.Errorf("of %d bytes with limit %d: read %d, %v", size, limit, len(data), err)
			}
		}
	}
}
