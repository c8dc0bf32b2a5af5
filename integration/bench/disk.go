package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// diskSize is what 1,000 pods of the slowest peer fit in, several times; the file is sparse.
const diskSize = 16 << 30

// mountDisk mounts a new ext4 with a journal, as a node's disk has it, at dir for the runtimes. On
// an ext4 without one, as the roots of some virtual machines are, making a file looks through all
// that have been deleted there within minutes (the kernel's fs/ext4/ialloc.c, recently_deleted):
// there the runtimes that come later, or have made and deleted more, would be the slower ones.
func mountDisk(ctx context.Context, dir string) (unmount func() error, err error) {
	file := dir + ".img"
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, diskSize), os.Mkdir(dir, 0o755)); err != nil {
		return nil, err
	}
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", file}, // or the kernel writes on behind us
		{"mount", "-o", "loop", file, dir},
	} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("a disk for the runtimes: %s: %w: %s", argv[0], err, out)
		}
	}
	return func() error {
		if err := unix.Unmount(dir, 0); err != nil { // the loop device goes with it
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		return nil
	}, nil
}
