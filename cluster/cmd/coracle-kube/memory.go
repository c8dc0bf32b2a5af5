package main

import (
	"bufio"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// gcPercent lets the heap grow by this much of what is in use before garbage is collected. What is in
	// use is small (some 30 MB), so collecting more often costs little.
	gcPercent = 60
	// calm is how long after the start what only the start needed is given back.
	calm = 10 * time.Second
)

// sparingly sets the collector for a process that is idle most of the time; $GOGC wins.
func sparingly() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		paceCollector()
	}
}

// trimWhenCalm gives memory back that only the start needed, when the start is over.
func trimWhenCalm(ctx context.Context) {
	select {
	case <-time.After(calm):
		debug.FreeOSMemory()
		dropProgram()
	case <-ctx.Done():
	}
}

// dropProgram unmaps the pages of the program's own file that the start has touched: some 90 MB of
// code, most of which ran once to register types. What is needed again comes back from the page
// cache, a few microseconds each; the kernel would do the same, but only under pressure.
func dropProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil || !fixed(program) {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[5] != program || strings.Contains(fields[1], "w") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &from, &to); err == nil {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// fixed says whether the program is loaded where it was linked. Else its read-only pages hold
// addresses that the loader has written, which are not in the file.
func fixed(program string) bool {
	f, err := elf.Open(program)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Type == elf.ET_EXEC
}
