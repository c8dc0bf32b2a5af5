package podlogs

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A directory of logs has an entry for each pod, and that of links one for each container.
func TestAPodsEndReadsNoDirectoryOfAllPods(t *testing.T) {
	dir := t.TempDir()
	d, links := Dirs{All: filepath.Join(dir, "logs"), Legacy: filepath.Join(dir, "links")}, &Links{Log: slog.New(slog.DiscardHandler)}
	if err := os.Mkdir(d.Legacy, 0o700); err != nil {
		t.Fatal(err)
	}
	one := func(name string) (pod *v1.Pod, link string) {
		pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
		log := filepath.Join(d.Pod(pod), "c", "0.log")
		link = filepath.Join(d.Legacy, name+"_ns_c-1.log")
		if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o700), os.WriteFile(log, nil, 0o600), os.Symlink(log, link)); err != nil {
			t.Fatal(err)
		}
		return pod, link
	}
	first, _ := one("first")
	second, link := one("second")
	_, others := one("third")
	if err := links.Remove(d, first); err != nil { // reads what earlier kubelets have left
		t.Fatal(err)
	}
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch)
	for _, path := range []string{d.All, d.Legacy} {
		if _, err := unix.InotifyAddWatch(watch, path, unix.IN_ACCESS); err != nil {
			t.Fatal(err)
		}
	}
	if err := links.Remove(d, second); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{d.Pod(second): false, link: false, others: true} {
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s: %v, want it there: %t", path, err, stays)
		}
	}
	events := make([]byte, 4096)
	n, err := unix.Read(watch, events)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	for at := 0; at+unix.SizeofInotifyEvent <= n; {
		name := binary.NativeEndian.Uint32(events[at+12:]) // the length of an entry's, 0 for the directory itself
		if name == 0 {
			t.Error("the directory of all pods was read")
		}
		at += unix.SizeofInotifyEvent + int(name)
	}
}
