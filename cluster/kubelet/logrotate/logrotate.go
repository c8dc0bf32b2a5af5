// Package logrotate keeps containers' logs within bounds, as upstream's kubelet does:
//
//	0.log                      what the runtime writes
//	0.log.20060102-150405      the one before, which followers may still read
//	0.log.20060102-140405.gz   older ones
//
// Every ten seconds each running container's log is looked at. One that has grown to MaxSize is renamed,
// and the runtime is told to begin another (CRI ReopenContainerLog); all files together are at most
// MaxFiles. What is written between two looks is not bounded by MaxSize. So, beyond what upstream
// does, files go, oldest first, until those that were set aside before have no more than MaxSize times
// MaxFiles bytes.
//
// Upstream's manager (k8s.io/kubernetes/pkg/kubelet/logs) cannot be stopped, and makes a call for each
// container at each look; the containers are known here. Its names for files are used, so that either
// goes on where the other ended.
//
// A rotation that fails is logged and tried again at the next look. One that was interrupted loses
// nothing but, where the kubelet is killed between the renaming and the call, the name of the log: the
// next look finds none and has the runtime make it.
package logrotate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"
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
				slog.Warn("a container's log cannot be rotated", "container", l.Container, "log", l.Path, "err", err)
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

func (r *Rotator) reopen(ctx context.Context, container string) error {
	ctx, cancel := context.WithTimeout(ctx, reopenWithin)
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
	aside := l.Path + "." + time.Now().Format(stamp)
	if slices.Contains(older, aside) || slices.Contains(older, aside+packed) {
		return nil // another was set aside in this very second: at the next look there is another name
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
		// The runtime still writes to it: under its name it is looked at again.
		return errors.Join(fmt.Errorf("reopen: %w", err), os.Rename(aside, l.Path))
	}
	return nil
}
