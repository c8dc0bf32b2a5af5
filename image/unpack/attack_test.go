package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/safepath"
)

// unpacked unpacks a layer in a directory of its own and says how much time of processors this
// process used meanwhile. How long it waits for one on a busy machine does not count.
func unpacked(t *testing.T, lim Limits, data []byte) (time.Duration, error) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "fs")
	must(t, os.Mkdir(root, 0o755))
	t.Cleanup(func() { // deeper than os.RemoveAll goes
		top, err := safepath.Open(filepath.Dir(root))
		must(t, err)
		defer top.Close()
		must(t, top.RemoveAll("fs"))
	})
	begin := used(t)
	err := Layer(t.Context(), bytes.NewReader(data), Target{Dir: root}, lim)
	return used(t) - begin, err
}

// used is how much time of processors this process has used, in the kernel, too.
func used(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestTimeOfLinks: a layer whose entries lead by long links takes a time that has nothing to do
// with its size (the class of containerd's GHSA-rp3h-jf77-q9p4). It is refused before it takes
// longer than any honest one.
func TestTimeOfLinks(t *testing.T) {
	// On ext4, creating a file takes longer if many files were removed in the last seconds, by any
	// process (recently_deleted in fs/ext4/ialloc.c).
	t.Setenv("TMPDIR", "/dev/shm")
	const entries = 500
	// A lookup may be made up to three times when others rename or mount meanwhile, and the kernel
	// counts the links of all of them (nd->total_link_count in fs/namei.c; 40 are too many).
	const links = 13
	layer := func(target string) []byte {
		items := []item{dir("d"), dir("e")}
		for i := range links {
			items = append(items, symlink(fmt.Sprintf("l%d", i), target))
		}
		var way strings.Builder
		for i := range links {
			fmt.Fprintf(&way, "l%d/", i)
		}
		for i := range entries { // in turns, so that each parent is looked for
			items = append(items, file(fmt.Sprintf("%s%c/%d", way.String(), 'd'+rune(i%2), i), ""))
		}
		return archive(t, items...)
	}
	short, long := layer("d/.."), layer(strings.Repeat("d/../", 400)+".")
	quick := time.Hour
	for range 3 {
		took, err := unpacked(t, Limits{}, short)
		must(t, err)
		quick = min(quick, took)
	}
	// The attack wins where nothing bounds it: the same number of entries takes ten times as long,
	// or three times under the race detector, which slows only our part of it.
	slow, err := unpacked(t, Limits{MaxLookups: 1 << 60}, long)
	must(t, err)
	t.Logf("%d entries: %v, by long links %v", entries, quick, slow)
	if slow < 2*quick {
		t.Errorf("control: the attack takes %v, other layers %v", slow, quick)
	}
	most := int64(entries / 10 * maxFollowed * 800)
	if _, err := unpacked(t, Limits{MaxLookups: most}, long); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "links") {
		t.Errorf("%v, want a refusal", err)
	}
	if _, err := unpacked(t, Limits{MaxLookups: most}, short); err != nil {
		t.Errorf("an ordinary layer: %v", err)
	}
}

// TestTimeOfLongNames: a name in a PAX header may have a megabyte, and a walk over its parents
// takes the square of that.
func TestTimeOfLongNames(t *testing.T) {
	name := strings.Repeat("a/", 1<<18) + "b"
	var hidden []item // as many as make each parent's name be looked for by its hash
	for i := range 100 {
		hidden = append(hidden, file(fmt.Sprintf(".wh.x%d", i), ""))
	}
	for what, items := range map[string][]item{
		"a file":        {file(name, "")},
		"a directory":   {dir(name)},
		"a whiteout":    {file(strings.TrimSuffix(name, "b")+".wh.b", "")},
		"a link's end":  {file("f", ""), hardlink("g", name)},
		"a path's size": {file(strings.Repeat("a/", 2048)+"f", "")},
		"full of dots":  {file(strings.Repeat("./", 1<<18)+"b", "")},
	} {
		if took, err := unpacked(t, Limits{}, archive(t, append(hidden, items...)...)); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v after %v", what, err, took)
		}
	}
	// What the limit is against: twice the length takes four times as long.
	took := func(n int) time.Duration {
		u := &unpacker{whiteouts: map[string]struct{}{}}
		for _, i := range hidden {
			u.whiteouts[i.Name] = struct{}{}
		}
		begin := time.Now()
		must(t, u.revive(strings.Repeat("a/", n/2)))
		return time.Since(begin)
	}
	small, large := time.Hour, took(256<<10)
	for range 20 {
		small = min(small, took(4<<10))
	}
	t.Logf("the parents of a name of 4 KiB: %v, of 256 KiB: %v", small, large)
	if large < 4*64*small {
		t.Errorf("control: the parents of a name of 4 KiB take %v, of one of 256 KiB %v", small, large)
	}
}

// TestDepthByLinks: by way of links, names that are not too long make directories of any depth,
// which others have to walk.
func TestDepthByLinks(t *testing.T) {
	down := strings.Repeat("a/", 1200)
	items := []item{dir(down), symlink("l", down), dir("l/" + down), symlink("m", "l/"+down), dir("m/b")}
	data := archive(t, items...)
	// The attack wins where nothing bounds it.
	if _, err := unpacked(t, Limits{MaxDepth: 1 << 30}, archive(t, items[:3]...)); err != nil {
		t.Errorf("control: %v", err)
	}
	if _, err := unpacked(t, Limits{}, data); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "nest") {
		t.Errorf("2400 levels: %v, want a refusal", err)
	}
	if _, err := unpacked(t, Limits{}, archive(t, dir(strings.Repeat("a/", 1500)+"b"))); !errors.Is(err, ErrLimit) {
		t.Errorf("1500 levels without links: %v, want a refusal", err)
	}
	if _, err := unpacked(t, Limits{}, archive(t, items[:2]...)); err != nil {
		t.Errorf("1200 levels: %v", err)
	}
}

// TestAttackDeviceInPlaceOfFile: a layer has a file and then a device node of the same name. The
// second entry makes the recipe useless, but the record of the file comes first. Making the archive
// again does not open the device.
func TestAttackDeviceInPlaceOfFile(t *testing.T) {
	for name, kind := range map[string]item{
		"device": {Header: tar.Header{Typeflag: tar.TypeChar, Name: "w", Mode: 0o600, Devmajor: 1, Devminor: 3}},
		"pipe":   {Header: tar.Header{Typeflag: tar.TypeFifo, Name: "w", Mode: 0o600}},
	} {
		layer, recipe := t.TempDir(), &bytes.Buffer{}
		data := archive(t, file("w", "content"), kind)
		must(t, Layer(t.Context(), bytes.NewReader(data), Target{Dir: layer, Recipe: recipe}, Limits{}))
		path := filepath.Join(layer, "w")
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		must(t, err)
		defer unix.Close(watch)
		_, err = unix.InotifyAddWatch(watch, path, unix.IN_OPEN)
		must(t, err)
		opened := func() bool {
			n, err := unix.Read(watch, make([]byte, 4<<10))
			return err == nil && n > 0
		}
		fd, err := unix.Open(path, unix.O_RDWR, 0) // a pipe's other end, too, or open would wait
		must(t, err)
		defer unix.Close(fd)
		if !opened() {
			t.Fatal("control: a plain open is not seen")
		}
		if err := Rebuild(t.Context(), recipe, layer, io.Discard); !errors.Is(err, ErrNoRecipe) {
			t.Errorf("%s: %v", name, err)
		}
		if opened() {
			t.Errorf("the %s was opened", name)
		}
	}
}

// TestReplacedDeepDirectory: an entry that takes the place of deep directories does not take the
// daemon's descriptors.
func TestReplacedDeepDirectory(t *testing.T) {
	data := archive(t, file(strings.Repeat("a/", 1300)+"f", ""), file("a", "now a file"))
	if _, err := unpacked(t, Limits{}, data); err != nil {
		t.Error(err)
	}
}
