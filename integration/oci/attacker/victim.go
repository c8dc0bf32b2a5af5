package main

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"unsafe"
)

// victim is what a careless runtime sends into a container: a process with the host's root, a
// directory of the host, a plan in its memory, and nothing that hides them. It has none of the
// capabilities that would keep an attacker away from it, and ends with its standard input.
func victim([]string) {
	plan := []byte("SECRET-OF-ANOTHER")
	const size = 64 << 10
	at, _, errno := syscall.Syscall6(syscall.SYS_MMAP, planBase, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_FIXED, ^uintptr(0), 0)
	must("mmap", errno)
	dir, err := os.Open("/")
	if err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
	defer dir.Close()
	pair := [2]int{}
	if err := syscall.Pipe(pair[:]); err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
	// The kernel copies, since Go's checks do not know the mapping.
	_, _ = syscall.Write(pair[1], plan)
	_, _, errno = syscall.Syscall(syscall.SYS_READ, uintptr(pair[0]), at, uintptr(len(plan)))
	must("read", errno)
	header := struct {
		version uint32
		pid     int32
	}{version: 0x20080522} // _LINUX_CAPABILITY_VERSION_3
	var none [6]uint32
	_, _, errno = syscall.Syscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0)
	must("capset", errno)
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func must(call string, errno syscall.Errno) {
	if errno != 0 {
		fmt.Fprintf(os.Stderr, "attacker: %s: %v\n", call, errno)
		os.Exit(1)
	}
}
