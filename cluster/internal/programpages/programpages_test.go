package programpages

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// resident is how many kB of the program's read-only pages are in memory.
func resident(t *testing.T) (kB int) {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	ours := false
	for line := range strings.Lines(string(smaps)) {
		fields := strings.Fields(line)
		switch {
		case !strings.HasSuffix(fields[0], ":"):
			ours = fields[len(fields)-1] == program && !strings.Contains(fields[1], "w")
		case ours && fields[0] == "Rss:":
			n, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			kB += n
		}
	}
	return kB
}

// touch reads a byte of each nth page of the program.
func touch(all []span, nth uintptr) (sum int, pages int) {
	for _, s := range all {
		for at := s.from; at < s.to; at += uintptr(os.Getpagesize()) * nth {
			sum += int(*(*byte)(unsafe.Add(unsafe.Pointer(nil), at))) //nolint:gosec // mapped and readable
			pages++
		}
	}
	return sum, pages
}

func TestDrop(t *testing.T) {
	all, err := spans()
	if err != nil || len(all) == 0 {
		t.Fatalf("the program is not loaded where it was linked, so that nothing can be seen: %v", err)
	}
	want, _ := touch(all, 1)
	before := resident(t)
	single := Drop()
	// With large pages, or with those around each, what the test itself runs is most of the program.
	if after := resident(t); before < 2000 || single == nil && after > before*2/3 {
		t.Errorf("%d kB of the program were in memory, and %d kB are after it", before, after)
	}
	if got, _ := touch(all, 1); got != want {
		t.Errorf("what comes back is another program: %d, want %d", got, want)
	}
	if single != nil {
		t.Logf("pages come back with those around them: %v", single)
		return
	}
	// Each 16th page, and what the test itself runs, comes back alone.
	if err := Drop(); err != nil {
		t.Fatal(err)
	}
	_, pages := touch(all, 16)
	if kB := resident(t); kB > before/2 || kB < pages*os.Getpagesize()/1024 {
		t.Errorf("%d pages were touched, and %d kB are in memory, of %d", pages, kB, before)
	}
}

func TestReadOnly(t *testing.T) {
	const maps = `00400000-0388a000 r-xp 00000000 fe:00 10952998                           /opt/a program
0388a000-073ae000 r--p 0348a000 fe:00 10952998                           /opt/a program
073ae000-0749c000 rw-p 06fae000 fe:00 10952998                           /opt/a program
0749c000-094f4000 rw-p 00000000 00:00 0 
7fcd6e200000-7fceae200000 r--s 00000000 fe:00 10685818                   /var/lib/db
7ffc0000-7ffd0000 r-xp 00000000 00:00 0                                  [vdso]
`
	want := []span{{0x400000, 0x388a000}, {0x388a000, 0x73ae000}}
	if got := readOnly(strings.NewReader(maps), "/opt/a program"); !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}
