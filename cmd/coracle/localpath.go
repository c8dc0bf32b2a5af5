package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/output"
	"github.com/coracle-project/coracle/internal/treewalk"
)

// volumesDir is where the cluster process keeps the volumes of the StorageClass local-path, one
// directory for each (cluster/controllers/localpath).
func (p place) volumesDir() string { return filepath.Join(p.kubeRoot(), "local-path", "volumes") }

// measureFor bounds how long volumes are measured: they may have any number of files.
const measureFor = 10 * time.Second

// volumeData is the data of claims that a purge would delete.
type volumeData struct {
	dir     string
	volumes int
	bytes   int64
	// more is that there was no time to measure all of it.
	more bool
}

func (d volumeData) String() string {
	volumes, atLeast := "volumes", ""
	if d.volumes == 1 {
		volumes = "volume"
	}
	if d.more {
		atLeast = "at least "
	}
	return fmt.Sprintf("the data of %d %s of claims, %s%s in %s", d.volumes, volumes, atLeast, output.Size(d.bytes), d.dir)
}

// measureVolumes says what data there is. Empty volumes count, too: what made them may rely on
// them.
func measureVolumes(ctx context.Context, dir string) (volumeData, error) {
	data := volumeData{dir: dir}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return data, nil
	}
	if err != nil {
		return data, err
	}
	ctx, cancel := context.WithTimeout(ctx, measureFor)
	defer cancel()
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") { // one that is being made has no owner yet
			continue
		}
		data.volumes++
		size, err := measure(ctx, filepath.Join(dir, e.Name()))
		data.bytes += size
		data.more = data.more || err != nil
	}
	return data, nil
}

// measure returns what is on disk in a directory.
func measure(ctx context.Context, dir string) (int64, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	size, err := treewalk.Sum(ctx, fd)
	return size.Bytes, err
}

// checkPurge refuses to delete data of claims that the caller has not agreed to.
func (p place) checkPurge(ctx context.Context, agreed bool) (volumeData, error) {
	data, err := measureVolumes(ctx, p.volumesDir())
	if agreed {
		return data, nil // what cannot be measured can be deleted
	}
	if err != nil {
		return data, fmt.Errorf("down --purge: volumes of claims: %w; 'coracle down --purge --delete-volumes' deletes them anyway", err)
	}
	if data.volumes > 0 {
		return data,
			fmt.Errorf(
				"down: --purge would delete %s: nothing was done; 'coracle down' alone keeps them, 'coracle down --purge --delete-volumes' deletes them",
				data,
			)
	}
	return data, nil
}

// checkLeave refuses a leave that would delete data of claims that the caller has not agreed to. It
// is called before anything changes.
func (p place) checkLeave(ctx context.Context, agreed bool) error {
	data, err := measureVolumes(ctx, p.volumesDir())
	switch {
	case agreed:
		return nil
	case err != nil:
		return fmt.Errorf("leave: volumes of claims: %w; 'coracle leave --delete-volumes%s' deletes them anyway", err, p.flags())
	case data.volumes > 0:
		return fmt.Errorf("leave: it would delete %s: nothing was done; 'coracle leave --delete-volumes%s' deletes it", data, p.flags())
	}
	return nil
}

// checkPurgeAgain does what checkPurge does when nothing makes volumes any more: the first check
// may have been too early for one.
func (p place) checkPurgeAgain(ctx context.Context, agreed bool) error {
	if agreed {
		return nil
	}
	data, err := measureVolumes(ctx, p.volumesDir())
	if err == nil && data.volumes == 0 {
		return nil
	}
	why := fmt.Sprintf("--purge would delete %s, made after down had begun", data)
	if err != nil {
		why = fmt.Sprintf("volumes of claims: %v", err)
	}
	return fmt.Errorf("down has stopped everything, and deleted nothing: %s; 'coracle down --purge --delete-volumes' deletes them", why)
}
