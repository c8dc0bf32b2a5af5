package volume

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// countedDepth is how deep into a volume its files are counted.
const countedDepth = 128

// Usage returns what each volume that was made for the pod takes. It looks at every file of those
// that are on disk, so it is for those who ask, and not for every second.
func (m *Manager) Usage(ctx context.Context, pod *v1.Pod) []statsapi.VolumeStats {
	return append(m.OwnUsage(ctx, pod), m.ClaimUsage(ctx, pod)...)
}

// OwnUsage returns what the volumes take that end with the pod. No Source is asked.
func (m *Manager) OwnUsage(ctx context.Context, pod *v1.Pod) []statsapi.VolumeStats {
	var all []statsapi.VolumeStats
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if isPersistent(vol) {
			continue
		}
		dir := m.dirs.Volume(pod.UID, vol)
		if dir == "" || layout.CheckUID(pod.UID) != nil {
			continue
		}
		stats, err := usageOf(ctx, dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			m.opts.Log.Debug("usage of a volume is not known", "dir", dir, "err", err)
			continue
		}
		all = append(all, statsapi.VolumeStats{Name: vol.Name, FsStats: *stats})
	}
	return all
}

// ClaimUsage returns what the pod's volumes take whose Sources know it without a look at every
// file.
func (m *Manager) ClaimUsage(ctx context.Context, pod *v1.Pod) (all []statsapi.VolumeStats) {
	for i := range pod.Spec.Volumes {
		if !isPersistent(&pod.Spec.Volumes[i]) {
			continue
		}
		if stats, ok := m.persistentUsage(ctx, pod, &pod.Spec.Volumes[i]); ok {
			all = append(all, stats)
		}
	}
	return all
}

// persistentUsage is what the volume's Source says, or the file system of a local volume. That of
// others is not asked: their server may be gone.
func (m *Manager) persistentUsage(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (statsapi.VolumeStats, bool) {
	p := m.of(pod.UID, false)
	if p == nil {
		return statsapi.VolumeStats{}, false
	}
	at, ok := p.placedOf(vol.Name)
	if measurer, measures := at.source.(source.Measurer); ok && measures {
		stats, known := measurer.Usage(ctx, at.spec)
		stats.Name = vol.Name
		if at.spec.PV != nil && at.spec.PV.Spec.ClaimRef != nil {
			claim := at.spec.PV.Spec.ClaimRef
			stats.PVCRef = &statsapi.PVCReference{Name: claim.Name, Namespace: claim.Namespace}
		}
		return stats, known
	}
	if !ok || at.spec.Block || at.spec.PV == nil || at.spec.PV.Spec.Local == nil {
		return statsapi.VolumeStats{}, false
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at.path, &fs); err != nil {
		return statsapi.VolumeStats{}, false
	}
	block := uint64(fs.Bsize)
	available, capacity, used := fs.Bavail*block, fs.Blocks*block, (fs.Blocks-fs.Bfree)*block
	inodes, inodesFree, inodesUsed := fs.Files, fs.Ffree, fs.Files-fs.Ffree
	claim := at.spec.PV.Spec.ClaimRef
	return statsapi.VolumeStats{
		Name: vol.Name, PVCRef: &statsapi.PVCReference{Name: claim.Name, Namespace: claim.Namespace},
		FsStats: statsapi.FsStats{
			Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
			Inodes: &inodes, InodesFree: &inodesFree, InodesUsed: &inodesUsed,
		},
	}, true
}

func usageOf(ctx context.Context, dir string) (*statsapi.FsStats, error) {
	fd, err := unix.Open(dir, layout.OpenDir, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var fs unix.Statfs_t
	var top unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &fs), unix.Fstat(fd, &top)); err != nil {
		unix.Close(fd)
		return nil, err
	}
	block := uint64(fs.Bsize)
	available, capacity, used := fs.Bavail*block, fs.Blocks*block, (fs.Blocks-fs.Bfree)*block
	inodes, inodesFree, inodesUsed := fs.Files, fs.Ffree, fs.Files-fs.Ffree
	if mountpoint.Is(dir) { // a file system of its own, which knows
		unix.Close(fd)
	} else {
		c := &count{ctx: ctx, device: top.Dev, linked: map[uint64]struct{}{}, inodes: 1, blocks: uint64(top.Blocks)}
		if err := c.add(fd, 0); err != nil {
			return nil, err
		}
		used, inodesUsed = c.blocks*512, c.inodes
	}
	return &statsapi.FsStats{
		Time: metav1.Now(), AvailableBytes: &available, CapacityBytes: &capacity, UsedBytes: &used,
		Inodes: &inodes, InodesFree: &inodesFree, InodesUsed: &inodesUsed,
	}, nil
}

// count is what the files of one file system below a directory take.
type count struct {
	ctx            context.Context
	device         uint64
	linked         map[uint64]struct{} // files with more than one name, counted once
	blocks, inodes uint64
}

// add counts what is in the directory fd, and closes it.
func (c *count) add(fd, depth int) error {
	dir := os.NewFile(uintptr(fd), "volume")
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(512)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err := errors.Join(err, c.ctx.Err()); err != nil {
			return err
		}
		for _, name := range names {
			var s unix.Stat_t
			if unix.Fstatat(fd, name, &s, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil || s.Dev != c.device {
				continue // gone meanwhile, or not of this volume
			}
			folder := s.Mode&unix.S_IFMT == unix.S_IFDIR
			if s.Nlink > 1 && !folder {
				if _, counted := c.linked[s.Ino]; counted {
					continue
				}
				c.linked[s.Ino] = struct{}{}
			}
			c.inodes++
			c.blocks += uint64(s.Blocks)
			if !folder || depth >= countedDepth {
				continue
			}
			next, err := unix.Openat2(fd, name,
				&unix.OpenHow{Flags: layout.OpenDir, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH})
			if err != nil {
				continue
			}
			if err := c.add(next, depth+1); err != nil {
				return err
			}
		}
	}
}
