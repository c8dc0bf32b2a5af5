package eviction

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

func (m *Manager) observe(ctx context.Context) observations {
	seen := observations{}
	if f, err := m.memory(); err != nil {
		m.Log.Warn("the node's free memory is not known", "err", err)
	} else {
		seen[evictionapi.SignalMemoryAvailable] = f
	}
	if d, err := m.disk(m.RootDir); err != nil {
		m.Log.Warn("free space of the node's disk is not known", "err", err)
	} else {
		seen[evictionapi.SignalNodeFsAvailable] = d.bytes
		seen.inodes(evictionapi.SignalNodeFsInodesFree, d)
	}
	dir, err := m.findImages(ctx)
	if err == nil && dir == "" {
		return seen // the runtime does not say where its images are
	}
	var d diskFigures
	if err == nil {
		d, err = m.disk(dir)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.Log.Warn("free space of the images' disk is not known", "err", err)
		}
		return seen
	}
	seen[evictionapi.SignalImageFsAvailable] = d.bytes
	seen.inodes(evictionapi.SignalImageFsInodesFree, d)
	return seen
}

// inodes notes how many inodes are free, if the file system has a number of them (btrfs has none).
func (o observations) inodes(name evictionapi.Signal, d diskFigures) {
	if d.inodes.capacity > 0 {
		o[name] = d.inodes
	}
}

// findImages returns a directory on the images' disk.
func (m *Manager) findImages(ctx context.Context) (string, error) {
	if dir := m.imageDir.Load(); dir != nil {
		return *dir, nil
	}
	dir, err := m.ImageDir(ctx)
	if err == nil {
		m.imageDir.Store(&dir)
	}
	return dir, err
}

// sharedDisk says whether images and writable layers are on the disk that volumes and logs are on.
func (m *Manager) sharedDisk(ctx context.Context) bool {
	dir, err := m.findImages(ctx)
	if err != nil || dir == "" {
		return true
	}
	of, err := m.disk(dir)
	node, err2 := m.disk(m.RootDir)
	return err != nil || err2 != nil || of.device == node.device
}

// readMemory tells what upstream counts as available: neither in use nor read from files of late.
func readMemory() (figure, error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return figure{}, err
	}
	total, free, inactive := meminfoBytes(meminfo, "MemTotal:"), meminfoBytes(meminfo, "MemFree:"), meminfoBytes(meminfo, "Inactive(file):")
	if total == 0 {
		return figure{}, errors.New("/proc/meminfo has no MemTotal")
	}
	return figure{available: min(free+inactive, total), capacity: total}, nil
}

func meminfoBytes(meminfo []byte, key string) int64 {
	for line := range bytes.Lines(meminfo) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			number, _, _ := bytes.Cut(bytes.TrimSpace(rest), []byte(" "))
			kb, _ := strconv.ParseInt(string(number), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// diskFigures are those of one file system.
type diskFigures struct {
	bytes, inodes figure
	device        uint64
}

func readDisk(dir string) (diskFigures, error) {
	var fs unix.Statfs_t
	var s unix.Stat_t
	if err := errors.Join(unix.Statfs(dir, &fs), unix.Stat(dir, &s)); err != nil {
		return diskFigures{}, fmt.Errorf("file system of %s: %w", dir, err)
	}
	return diskFigures{
		bytes:  figure{available: int64(fs.Bavail) * fs.Bsize, capacity: int64(fs.Blocks) * fs.Bsize},
		inodes: figure{available: int64(fs.Ffree), capacity: int64(fs.Files)},
		device: s.Dev,
	}, nil
}
