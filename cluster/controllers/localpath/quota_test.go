package localpath

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
	"github.com/coracle-project/coracle/cluster/internal/btrfstest"
	"github.com/coracle-project/coracle/cluster/proxy/testnet"
)

func enableQuotas(t *testing.T, dir string) {
	t.Helper()
	fd, err := unix.Open(dir, openDir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const quotaCtl, enable = 0xc0109428, 1 // BTRFS_IOC_QUOTA_CTL
	args := struct{ command, status uint64 }{command: enable}
	if err := ioctl(fd, quotaCtl, unsafe.Pointer(&args)); err != nil {
		t.Fatal(err)
	}
}

// fill writes until there is no more room, and returns how many bytes there was room for.
func fill(t *testing.T, path string) (written int64, err error) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 256<<10)
	for written < 16<<20 {
		n, err := f.Write(block)
		written += int64(n)
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// On btrfs with quotas a claim's size is a limit, and a volume that is full can be deleted. Without
// quotas nothing stops the same writes.
func TestQuotas(t *testing.T) {
	if !btrfstest.CanMount(t) {
		testnet.Untested(t, "quotas of volumes: this kernel has no btrfs, or no loop devices")
		return
	}
	for name, quotas := range map[string]bool{"with quotas": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			root := btrfstest.Mount(t)
			if quotas {
				enableQuotas(t, root)
			}
			ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
				b := prepare(t, s, root)
				claim := b.claim("data", "4Mi", nil)
				s.Settle()
				if b.volume(claim) == nil {
					b.wantEvent("data", "ProvisioningSucceeded", "")
					t.Fatal("there is no volume")
				}
				b.bind(claim)
				written, err := fill(t, b.dir(claim)+"/file")
				if quotas && (!errors.Is(err, unix.EDQUOT) || written > 5<<20) || !quotas && err != nil {
					t.Errorf("%d bytes could be written, %v", written, err)
				}
				if info, err := os.Stat(b.dir(claim)); err != nil || info.Mode().Perm() != 0o777 {
					t.Errorf("the volume: %v, %v", info, err)
				}
				b.release(claim)
				s.Settle()
				b.wantOnDisk()
				if b.volume(claim) != nil {
					t.Error("the volume is still there")
				}
				empty := b.claim("empty", "4Mi", nil)
				s.Settle()
				b.wantOnDisk(nameOf(empty))
				if !quotas {
					return
				}
				// A crash before the PersistentVolume was made leaves an empty subvolume, which
				// rmdir takes away.
				if err := b.dirs().discard(nameOf(empty)); err != nil {
					t.Error(err)
				}
				b.wantOnDisk()
			})
		})
	}
}

func (b *bench) dirs() dirs { return dirs{root: b.root, projects: newProjects(slog.Default())} }
