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
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		if os.Getenv("CGO_ENABLED") == "0" {
			t.Fatal("the program is not found")
		}
		t.Skip("this program has a loader, as with the race detector: `make unit` tests without")
	}
	want, pages := touch(all, 1)
	whole := pages * os.Getpagesize() / 1024
	if kB := resident(t); kB < whole*9/10 {
		t.Fatalf("%d kB of the program are in memory when all was touched, of %d", kB, whole)
	}
	single := Drop()
	// With large pages, or with those around each, what the test itself runs is most of the
	// program.
	if after := resident(t); single == nil && after > whole*2/3 {
		t.Errorf("%d kB of the program are in memory after it, of %d", after, whole)
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
	_, pages = touch(all, 16)
	if kB := resident(t); kB > whole/2 || kB < pages*os.Getpagesize()/1024 {
		t.Errorf("%d pages were touched, and %d kB are in memory, of %d", pages, kB, whole)
	}
}

func TestReadOnly(t *testing.T) {
	text := header{kind: load, flags: 5, address: 0x400000, inFile: 0x1234, inMemory: 0x1234}
	constants := header{kind: load, flags: 4, offset: 0x2000, address: 0x402000, inFile: 0x1000, inMemory: 0x1000}
	data := header{kind: load, flags: 6, offset: 0x3000, address: 0x403080, inFile: 0x100, inMemory: 0x9000}
	const protected = 0x6474e552 // PT_GNU_RELRO
	for name, tc := range map[string]struct {
		headers []header
		want    []span
	}{
		"Go's": {[]header{text, constants, data}, []span{{0x400000, 0x402000}, {0x402000, 0x403000}}},
		"of a C linker": {
			[]header{text, data, {kind: protected, flags: 4, address: 0x403080, inFile: 0x80}},
			[]span{{0x400000, 0x402000}},
		},
		"a page with data, too": {
			[]header{text, {kind: load, flags: 6, address: 0x401800, inFile: 0x100, inMemory: 0x100}},
			[]span{{0x400000, 0x401000}},
		},
		"nothing from the file": {[]header{{kind: load, flags: 4, address: 0x400000, inMemory: 0x1000}}, nil},
		"with a loader":         {[]header{{kind: loader}, text, constants, data}, nil},
		"for any place":         {[]header{text, constants, data, {kind: dynamic}}, nil},
	} {
		if got := readOnly(tc.headers, 0x1000); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %x, want %x", name, got, tc.want)
		}
	}
}

// BenchmarkReturn is what a page costs that comes back: a byte of each is read.
func BenchmarkReturn(b *testing.B) {
	all, err := spans()
	if err != nil {
		b.Fatal(err)
	}
	pages := 0
	for b.Loop() {
		b.StopTimer()
		if err := Drop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		_, pages = touch(all, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*pages), "ns/page")
}
