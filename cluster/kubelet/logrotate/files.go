package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Endings of the names of files that were set aside.
const (
	packed  = ".gz"
	packing = ".tmp" // not whole yet
)

// setAside returns the files that a log was continued from, oldest first. What an interrupted
// compression left is removed.
func setAside(log string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(log))
	if err != nil {
		return nil, err
	}
	var all []string // by name, which is by age
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(log)+".") && e.Type().IsRegular() {
			all = append(all, filepath.Join(filepath.Dir(log), e.Name()))
		}
	}
	var whole []string
	for _, f := range all {
		if !strings.HasSuffix(f, packing) && !slices.Contains(all, f+packed) {
			whole = append(whole, f)
		} else if err := os.Remove(f); err != nil {
			return nil, err
		}
	}
	return whole, nil
}

// nextAside returns the name that a log is set aside under. It sorts after those of older files,
// which setAside returned: within one second of another, or after the clock was set back, it has a
// time to come. The shim has the same rule.
func nextAside(log string, older []string, now time.Time) (string, error) {
	at, err := time.Parse(stamp, now.Format(stamp)) // local time, without a zone's jumps
	if err != nil {
		return "", err
	}
	for _, f := range older {
		old, err := time.Parse(stamp, strings.TrimSuffix(strings.TrimPrefix(f, log+"."), packed))
		if err == nil && !at.After(old) {
			at = old.Add(time.Second)
		}
	}
	return log + "." + at.Format(stamp), nil
}

// prune removes the oldest files until the others, the log and the one that is about to be set
// aside are not too many, and returns the others.
func (r *Rotator) prune(files []string) ([]string, error) {
	sizes := make([]int64, len(files))
	sum := int64(0)
	for i, f := range files {
		info, err := os.Lstat(f)
		if err != nil {
			return nil, err
		}
		sizes[i] = info.Size()
		sum += sizes[i]
	}
	for len(files) > 0 && (len(files) > r.MaxFiles-2 || sum > r.MaxSize*int64(r.MaxFiles)) {
		if err := os.Remove(files[0]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		sum -= sizes[0]
		files, sizes = files[1:], sizes[1:]
	}
	return files, nil
}

// pack compresses a file, unless it is.
func pack(ctx context.Context, file string) (err error) {
	if strings.HasSuffix(file, packed) {
		return nil
	}
	from, err := os.Open(file)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	to, err := os.OpenFile(file+packing, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(to.Name())
		}
	}()
	w := gzip.NewWriter(to)
	_, err = io.Copy(w, interruptible{ctx, from})
	if err = errors.Join(err, w.Close(), to.Close()); err != nil {
		return err
	}
	if err = os.Rename(to.Name(), file+packed); err != nil {
		return err
	}
	return os.Remove(file)
}

// interruptible reads until ctx ends.
type interruptible struct {
	ctx context.Context
	io.Reader
}

func (r interruptible) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}
