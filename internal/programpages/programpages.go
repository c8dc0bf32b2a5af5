// Package programpages keeps few pages of the running program's own file in memory.
//
// A start runs much code once, to register types above all. And where a page is touched, the kernel
// also maps up to 15 around it: an idle process of 115 MB that uses 3 % of its code has half of it
// in memory. All that counts as the process's, until the kernel is short of memory.
//
// It is a module of its own, because programs of two modules use it.
package programpages

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// span is a range of addresses.
type span struct{ from, to uintptr }

// Drop unmaps the read-only pages of the program's file. Those that are needed come back from the
// page cache, each in about a microsecond, and alone, where the kernel can do that (Linux 6.7).
// For that a descriptor stays open as long as the process lives.
//
// It does nothing for a program that is not linked statically, for a fixed place: pages of that may
// hold addresses that the loader has written, which are not in the file.
//
// Breakpoints that others have written into the program (uprobes, debuggers) are lost with its
// pages.
//
// The error says why pages do not come back alone.
func Drop() error {
	all, err := spans()
	if err != nil || len(all) == 0 {
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

// header is a program header of a file in memory (Elf64_Phdr).
type header struct {
	kind, flags                                        uint32
	offset, address, physical, inFile, inMemory, align uint64
}

// From elf.h: what a header is about, and a flag of it. Package debug/elf would add 100 kB.
const (
	load     = 1 // PT_LOAD
	dynamic  = 2 // PT_DYNAMIC
	loader   = 3 // PT_INTERP
	writable = 2 // PF_W
)

// spans returns where the program's file is mapped and cannot be written; nothing for a program
// that may have been changed by the loader.
func spans() ([]span, error) {
	vector, err := unix.Auxv()
	if err != nil {
		return nil, fmt.Errorf("where the program is: %w", err)
	}
	aux := map[uintptr]uintptr{}
	for _, entry := range vector {
		aux[entry[0]] = entry[1]
	}
	const headers, size, number = 3, 4, 5 // AT_PHDR, AT_PHENT, AT_PHNUM
	if aux[headers] == 0 || aux[size] != unsafe.Sizeof(header{}) {
		return nil, nil // 32 bits
	}
	first := (*header)(unsafe.Add(unsafe.Pointer(nil), aux[headers])) //nolint:gosec // the kernel says so
	return readOnly(unsafe.Slice(first, aux[number]), uintptr(os.Getpagesize())), nil
}

// readOnly returns the pages of those parts of the program that cannot be written, nothing if a
// loader may have.
//
// Parts that are protected only when addresses were written into them (PT_GNU_RELRO) are within one
// that can be written.
func readOnly(headers []header, page uintptr) (found []span) {
	if slices.ContainsFunc(headers, func(h header) bool { return h.kind == loader || h.kind == dynamic }) {
		return nil
	}
	for _, h := range headers {
		if h.kind != load || h.flags&writable != 0 || h.inFile == 0 {
			continue
		}
		s := span{uintptr(h.address) &^ (page - 1), (uintptr(h.address+h.inFile) + page - 1) &^ (page - 1)}
		for _, w := range headers { // the kernel's pages may be larger than the linker thought
			if w.kind == load && w.flags&writable != 0 && uintptr(w.address+w.inMemory) > s.from {
				s.to = min(s.to, uintptr(w.address)&^(page-1))
			}
		}
		if s.from < s.to {
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
