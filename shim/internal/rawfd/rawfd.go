// Package rawfd lends the descriptors of files.
package rawfd

import "os"

// With calls do with f's descriptor, which stays open meanwhile. Unlike Fd it leaves
// the file non-blocking. If f is closed, do is not called.
func With(f *os.File, do func(fd int)) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { do(int(fd)) })
}
