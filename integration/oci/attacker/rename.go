package main

import (
	"syscall"
	"unsafe"
)

// renameExchange is renameat2(2) with RENAME_EXCHANGE, and says whether it succeeded.
func renameExchange(a, b []byte) bool {
	const exchange = 2
	at := -100 // AT_FDCWD
	_, _, err := syscall.RawSyscall6(sysRenameat2, uintptr(at), uintptr(unsafe.Pointer(&a[0])), uintptr(at), uintptr(unsafe.Pointer(&b[0])),
		exchange, 0)
	return err == 0
}
