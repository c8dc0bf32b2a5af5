package main

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

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
	const name = "/sys/kernel/mm/transparent_hugepage/enabled"
	enabled, err := os.ReadFile(name)
	if os.IsNotExist(err) || strings.Contains(string(enabled), "[never]") {
		testnet.Untested(t, "huge pages of a large heap: this kernel has none for programs ("+name+")")
		return
	}
	if kept = make([]byte, 64<<20); len(kept) == 0 {
		t.Fatal("no memory")
	}
	for i := 0; i < len(kept); i += 1 << 12 {
		kept[i] = 1
	}
	h := new(heapPages)
	before, _ := mappingOf(t, &kept[0])
	if err := h.set(false); err != nil {
		t.Error(err)
	}
	if after, _ := mappingOf(t, &kept[0]); !slices.Equal(after, before) {
		t.Errorf("what was never asked for was given up: flags %v, before %v", after, before)
	}
	for _, c := range []struct {
		huge bool
		flag string
	}{{true, "hg"}, {true, "hg"}, {false, "nh"}, {true, "hg"}} {
		if err := h.set(c.huge); err != nil {
			t.Error(err)
		}
		flags, huge := mappingOf(t, &kept[len(kept)-1])
		if !slices.Contains(flags, c.flag) {
			t.Errorf("huge pages %t: the heap has the flags %v", c.huge, flags)
		}
		if huge < len(kept)>>10*3/4 {
			t.Errorf("%d kB of the heap are huge pages, of %d", huge, len(kept)>>10)
		}
	}
	if err := h.set(false); err != nil {
		t.Error(err)
	}
	kept = nil
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
