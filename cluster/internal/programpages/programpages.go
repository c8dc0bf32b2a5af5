// Package programpages keeps few pages of the running program's own file in memory.
//
// A start runs much code once, to register types above all. And where a page is touched, the kernel
// also maps up to 15 around it: an idle process of 115 MB that uses 3 % of its code has half of it
// in memory. All that counts as the process's, until the kernel is short of memory.
package programpages

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// span is a range of addresses.
type span struct{ from, to uintptr }

// Drop unmaps the read-only pages of the program's file. Those that are needed come back from the
// page cache, each in less than a microsecond, and alone, where the kernel can do that (Linux 6.7).
// It does nothing for a program that is not linked statically, for a fixed place: pages of that
// hold addresses that the loader has written, which are not in the file.
//
// The error says why pages do not come back alone.
func Drop() error {
	all, err := spans()
	if err != nil {
		return err
	}
	err = mapSingly(all)
	for _, s := range all {
		if _, _, e := unix.Syscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED); e != 0 {
			err = errors.Join(err, fmt.Errorf("drop the program's pages: %w", e))
		}
	}
	return err
}

// spans returns where the program's file is mapped and cannot be written; nothing for a program
// that may have been changed by the loader.
func spans() ([]span, error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	file, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if file.Type != elf.ET_EXEC || slices.ContainsFunc(file.Progs, loaded) {
		return nil, nil
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	return readOnly(maps, program), nil
}

// loaded says whether a part of the program is for a loader, which writes addresses into pages and
// protects them afterwards.
func loaded(p *elf.Prog) bool {
	return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC || p.Type == elf.PT_GNU_RELRO
}

// readOnly returns where /proc/self/maps says that program is mapped and cannot be written.
func readOnly(maps io.Reader, program string) (found []span) {
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || strings.Join(fields[5:], " ") != program || strings.Contains(fields[1], "w") {
			continue
		}
		var s span
		if _, err := fmt.Sscanf(fields[0], "%x-%x", &s.from, &s.to); err == nil {
			found = append(found, s)
		}
	}
	return found
}

// From linux/userfaultfd.h.
const (
	uffdAPI          = 0xaa
	uffdioAPI        = 0xc018aa3f
	uffdioRegister   = 0xc020aa00
	uffdUserModeOnly = 1
	uffdWPAsync      = 1 << 15
	uffdRegisterWP   = 1 << 1
)

// tracking is open as long as the process lives: with it, what it asks for would end.
var tracking = sync.OnceValues(func() (uintptr, error) {
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|uffdUserModeOnly, 0, 0)
	if e != 0 {
		return 0, fmt.Errorf("userfaultfd: %w", e)
	}
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: uffdWPAsync}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); e != 0 {
		_ = unix.Close(int(fd))
		return 0, fmt.Errorf("userfaultfd without asynchronous write protection: %w", e)
	}
	return fd, nil
})

// mapSingly has the kernel map only the page that is touched. It does so in memory whose writes are
// tracked, of which there are none here: no page is protected, and nothing is ever reported.
func mapSingly(all []span) error {
	fd, err := tracking()
	if err != nil {
		return err
	}
	for _, s := range all {
		register := struct{ start, length, mode, ioctls uint64 }{uint64(s.from), uint64(s.to - s.from), uffdRegisterWP, 0}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&register))); e != 0 {
			return fmt.Errorf("track the program's pages: %w", e)
		}
	}
	return nil
}
