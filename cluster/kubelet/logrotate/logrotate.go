// Package logrotate keeps containers' logs within bounds, as upstream's kubelet does:
//
//	0.log                      what the runtime writes
//	0.log.20060102-150405      the one before, which followers may still read
//	0.log.20060102-140405.gz   older ones
//
// Every ten seconds each running container's log is looked at. One that has grown to MaxSize is
// renamed, and the runtime is told to open a new one (CRI ReopenContainerLog). There are at most
// MaxFiles files. A file may grow past MaxSize between two looks. So the oldest files are also
// removed until those set aside before have at most MaxSize times MaxFiles bytes. Upstream does not
// do that.
//
// Upstream's manager (k8s.io/kubernetes/pkg/kubelet/logs) cannot be stopped, and makes a call for
// each container at each look; the containers are known here. Files have the same names as with
// upstream, so each manager can continue after the other.
//
// A rotation that fails is logged and tried again at the next look. A kubelet that is killed
// between the renaming and the call leaves no file under the log's name, and loses nothing that was
// written: the next look has the runtime make the file.
package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Policy bounds a container's logs. The zero value is upstream's: 10 MiB, 5 files, every 10 s.
type Policy struct {
	MaxSize  int64 // bytes; negative: logs are not rotated
	MaxFiles int   // at least 2
	Every    time.Duration
}

// WithDefaults fills in what is zero.
func (p Policy) WithDefaults() Policy {
	if p.MaxSize == 0 {
		p.MaxSize = 10 << 20
	}
	if p.MaxFiles == 0 {
		p.MaxFiles = 5
	}
	if p.Every == 0 {
		p.Every = 10 * time.Second
	}
	return p
}

// Check says what is wrong with a policy.
func (p Policy) Check() error {
	if p.MaxFiles < 2 {
		return fmt.Errorf("at most %d log files of a container: at least 2 are needed", p.MaxFiles)
	}
	return nil
}

// Log is that of a running container.
type Log struct {
	Container string // its id
	Path      string
}

// Rotator rotates logs.
type Rotator struct {
	Policy
	Log *slog.Logger
	// Running returns the logs of running containers, from memory.
	Running func() []Log
	// Reopen has the runtime close a container's log and open it again by its name.
	Reopen func(ctx context.Context, container string) error
}

// reopenWithin is how long the runtime may take to open a log.
const reopenWithin = 10 * time.Second

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) {
	if r.MaxSize < 0 {
		return
	}
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, l := range r.Running() {
			if ctx.Err() != nil {
				return
			}
			if err := r.look(ctx, l); err != nil && ctx.Err() == nil {
				r.Log.Warn("a container's log cannot be rotated", "container", l.Container, "log", l.Path, "err", err)
			}
		}
	}
}

// look rotates a log that is full.
func (r *Rotator) look(ctx context.Context, l Log) error {
	info, err := os.Lstat(l.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // we renamed it and were killed
		return r.reopen(ctx, l.Container)
	case err != nil:
		return err
	case info.Size() < r.MaxSize:
		return nil
	}
	return r.rotate(ctx, l)
}

// reopen goes on when the kubelet ends: the runtime may have received the call.
func (r *Rotator) reopen(ctx context.Context, container string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reopenWithin)
	defer cancel()
	return r.Reopen(ctx, container)
}

// stamp is how upstream's kubelet, and coracled's shim, name what they set aside.
const stamp = "20060102-150405"

func (r *Rotator) rotate(ctx context.Context, l Log) error {
	older, err := setAside(l.Path)
	if err != nil {
		return err
	}
	aside, err := nextAside(l.Path, older, time.Now())
	if err != nil {
		return err
	}
	if older, err = r.prune(older); err != nil {
		return err
	}
	for _, f := range older {
		if err := pack(ctx, f); err != nil {
			return fmt.Errorf("compress %s: %w", f, err)
		}
	}
	if err := os.Rename(l.Path, aside); err != nil {
		return err
	}
	if err := r.reopen(ctx, l.Container); err != nil {
		// If the runtime still writes to it, it is looked at again under its name. A runtime that
		// answered too late has a new file there, which must keep the name.
		back := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, l.Path, unix.RENAME_NOREPLACE)
		if errors.Is(back, unix.EEXIST) {
			back = nil
		}
		if back != nil {
			back = fmt.Errorf("rename %s back to %s: %w", aside, l.Path, back)
		}
		return errors.Join(fmt.Errorf("reopen: %w", err), back)
	}
	return nil
}
