package shim

import "os"

// withFD calls do with f's descriptor, which stays open meanwhile. Unlike Fd it leaves
// the file non-blocking. If f is closed, do is not called.
func withFD(f *os.File, do func(fd int)) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) { do(int(fd)) })
}
