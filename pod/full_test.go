package pod

import "golang.org/x/sys/unix"

// mountSized mounts a tmpfs of its own size on a directory.
func mountSized(dir, size string) error { return unix.Mount("test", dir, "tmpfs", 0, size) }
