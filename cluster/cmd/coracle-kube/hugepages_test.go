package main

import (
	"bufio"
	"errors"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func TestAround(t *testing.T) {
	const maps = `00400000-06bef000 r-xp 00000000 fe:00 10021426                           /usr/bin/coracle-kube
06bef000-06cdb000 rw-p 067ef000 fe:00 10021426                           /usr/bin/coracle-kube
06cdb000-08d32000 rw-p 00000000 00:00 0
2690e800000-269b4000000 rw-p 00000000 00:00 0
269b4000000-269b6000000 rw-p 00000000 00:00 0                            [anon: Go: heap]
269b6000000-269b8000000 ---p 00000000 00:00 0                            [anon: Go: heap reservation]
7f9683754000-7f9685199000 rw-p 00000000 00:00 0                          [anon: Go: gc bits]
7ffe48319000-7ffe4833a000 rw-p 00000000 00:00 0                          [stack]`
	for address, want := range map[uintptr][2]uintptr{
		0x2690e800000: {0x2690e800000, 0x269b6000000}, 0x269b5ffffff: {0x2690e800000, 0x269b6000000},
		0x07000000: {0x06cdb000, 0x08d32000},
		0x00500000: {}, 0x06c00000: {}, 0x269b6000000: {}, 0x7f9683754000: {}, 0x7ffe48319000: {}, 0: {},
	} {
		from, to, err := around(strings.NewReader(maps), address)
		if got := [2]uintptr{from, to}; got != want || (err != nil) != (want == [2]uintptr{}) {
			t.Errorf("%#x: %#x to %#x, %v, want %#x", address, from, to, err, want)
		}
	}
	for _, end := range []string{"", "1-2 rw-p", "x-y rw-p 0 00:00 0", "10000000000000000-2 rw-p 0 00:00 0", strings.Repeat("x", 1<<17)} {
		if _, _, err := around(strings.NewReader(maps[:500]+"\n"+end), 1); err == nil {
			t.Errorf("%.40q: found", end)
		}
	}
}

// kept is on the heap.
var kept []byte

func TestHeapPages(t *testing.T) {
	h := &heapPages{settings: hugePages}
	if !h.allowed() {
		testnet.Untested(t, "huge pages of a large heap: this kernel has none for programs (see "+hugePages+")")
		return
	}
	if err := madvise(0, 0, unix.MADV_COLLAPSE); err != nil {
		testnet.Untested(t, "huge pages of a large heap: this kernel does not replace small ones when asked to (Linux 6.1)")
		return
	}
	debug.FreeOSMemory() // what earlier tests have left is not huge any more
	if kept = make([]byte, 64<<20); len(kept) == 0 {
		t.Fatal("no memory")
	}
	defer func() { kept = nil }()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	from, to, err := around(maps, uintptr(unsafe.Pointer(&kept[0])))
	if err != nil {
		t.Fatal(err)
	}
	if err := madvise(from, to, unix.MADV_NOHUGEPAGE); err != nil { // or pages are huge by themselves
		t.Fatal(err)
	}
	for i := 0; i < len(kept); i += 1 << 12 {
		kept[i] = 1
	}
	if err := h.set(false); err != nil {
		t.Error(err)
	}
	_, before := mappingOf(t, &kept[0])
	if before >= len(kept)>>10/2 {
		t.Fatalf("%d kB are huge before that was asked for", before)
	}
	for _, c := range []struct {
		huge bool
		flag string
	}{{true, "hg"}, {true, "hg"}, {false, "nh"}, {true, "hg"}} {
		err := h.set(c.huge)
		if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EBUSY) {
			testnet.Untested(t, "huge pages of a large heap: the machine has too few for 64 MB")
			break
		}
		if err != nil {
			t.Error(err)
		}
		flags, huge := mappingOf(t, &kept[len(kept)-1])
		if !slices.Contains(flags, c.flag) {
			t.Errorf("huge pages %t: the heap has the flags %v", c.huge, flags)
		}
		if huge-before < len(kept)>>10*3/4 {
			t.Errorf("%d kB more of the heap are huge pages, of %d", huge-before, len(kept)>>10)
		}
	}
	if err := h.set(false); err != nil {
		t.Error(err)
	}
}

func TestHugePagesOnlyWhereAllowed(t *testing.T) {
	for _, c := range []struct {
		enabled, size string
		allowed       bool
	}{
		{"always [madvise] never", "", true},
		{"[always] madvise never", "", true},
		{"always madvise [never]", "", false},
		{"", "", false}, // a kernel without them
		{"always madvise [never]", "always [inherit] madvise never", false},
		{"always [madvise] never", "always [inherit] madvise never", true},
		{"always [madvise] never", "always inherit madvise [never]", false},
		{"always madvise [never]", "always inherit [madvise] never", true},
	} {
		h := &heapPages{settings: t.TempDir()}
		if c.enabled != "" {
			write(t, h.settings, "enabled", c.enabled)
		}
		if c.size != "" {
			write(t, h.settings+"/hugepages-2048kB", "enabled", c.size)
		}
		if got := h.allowed(); got != (c.allowed && os.Getpagesize() == 4<<10) {
			t.Errorf("%q, of 2 MB %q: allowed %t", c.enabled, c.size, got)
		}
		if err := h.set(true); err != nil || h.huge && !c.allowed {
			t.Errorf("%q, of 2 MB %q: they were asked for, %v", c.enabled, c.size, err)
		}
		if err := h.set(false); err != nil {
			t.Error(err)
		}
	}
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/"+name, []byte(content+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// mappingOf returns what the kernel knows of the memory that has p in it: VmFlags and
// AnonHugePages, in kB, of proc_pid_smaps(5).
func mappingOf(t *testing.T, p *byte) (flags []string, huge int) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	address, within := uintptr(unsafe.Pointer(p)), false
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if from, to, ok := heapLike(s.Text()); ok {
			within = from <= address && address < to
		}
		switch {
		case !within:
		case fields[0] == "AnonHugePages:":
			if huge, err = strconv.Atoi(fields[1]); err != nil {
				t.Error(err)
			}
		case fields[0] == "VmFlags:":
			return fields[1:], huge
		}
	}
	t.Fatal("the heap is not in smaps")
	return nil, 0
}
