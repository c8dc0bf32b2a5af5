// Package btrfstest mounts a btrfs for tests, which need no program of btrfs.
package btrfstest

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// image is an empty btrfs of 32 MiB. It was made by mkfs.btrfs -M, and compressed twice, which
// makes 34 kB of zeros small.
//
//go:embed btrfs.img.gz.gz
var image []byte

// Mount returns a directory with an empty btrfs of 32 MiB.
func Mount(t testing.TB) string {
	t.Helper()
	outer, err := gzip.NewReader(bytes.NewReader(image))
	if err != nil {
		t.Fatal(err)
	}
	inner, err := gzip.NewReader(outer)
	if err != nil {
		t.Fatal(err)
	}
	file, dir := filepath.Join(t.TempDir(), "btrfs.img"), t.TempDir()
	disk, err := os.Create(file)
	if err == nil {
		_, err = io.Copy(disk, inner)
	}
	if err := errors.Join(err, disk.Close()); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("mount", "-t", "btrfs", "-o", "loop", file, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, said)
	}
	t.Cleanup(func() {
		if said, err := exec.Command("umount", "-d", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, said)
		}
	})
	return dir
}

// CanMount says whether the kernel has what Mount needs, built in or as modules.
func CanMount(t testing.TB) bool {
	t.Helper()
	for _, module := range []string{"btrfs", "loop"} {
		_ = exec.Command("modprobe", "-q", module).Run() // what is built in is no module
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	_, err = os.Stat("/dev/loop-control")
	return err == nil && strings.Contains(string(known), "\tbtrfs\n")
}
