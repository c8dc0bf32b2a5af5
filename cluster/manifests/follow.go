package manifests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

// followAgain is the pause after the directory could not be followed.
const followAgain = 10 * time.Second

// follow has the directory read whenever it changes, until ctx ends.
func (s *Set) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.followDir(ctx)
		if err == nil || ctx.Err() != nil {
			continue // another directory is to be followed
		}
		s.Log.Warn("manifests: the directory is not followed", "dir", s.Dir, "err", err)
		s.again()
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}

// followDir follows the directory, or, while it does not exist, the nearest one above it. It
// returns nil when another directory has to be followed.
//
// A file is read when its writer closes it, and not before (see lease).
func (s *Set) followDir(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w (fs.inotify.max_user_instances may be too low)", err)
	}
	queue := os.NewFile(uintptr(fd), "inotify")
	defer func() { _ = queue.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = queue.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	dir, err := existing(s.Dir)
	if err != nil {
		return err
	}
	mask := uint32(unix.IN_CREATE | unix.IN_MOVED_TO)
	if dir == s.Dir {
		mask |= unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_DELETE // links are only made
	}
	if _, err := unix.InotifyAddWatch(fd, dir, mask|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR); err != nil {
		return &os.PathError{Op: "inotify", Path: dir, Err: err}
	}
	followed, err := os.Stat(dir)
	if err != nil {
		return nil //nolint:nilerr // it has gone again
	}
	var events [4096]byte
	for {
		if now, err := existing(s.Dir); err != nil || now != dir {
			return err
		}
		if now, err := os.Stat(dir); err != nil || !os.SameFile(followed, now) {
			return nil //nolint:nilerr // it was removed or replaced
		}
		s.again()
		if _, err := queue.Read(events[:]); err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
	}
}

// existing returns dir, or the nearest directory above it that exists.
func existing(dir string) (string, error) {
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && info.IsDir():
			return dir, nil
		case err == nil:
			return "", &os.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
		case !errors.Is(err, os.ErrNotExist) || dir == "/":
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

// kindWatch tells of changes of one kind's objects.
type kindWatch struct {
	stop context.CancelFunc
	done chan struct{}
}

// watch follows the set's objects, of the kinds that it has now.
func (s *Set) watch(ctx context.Context, objects map[objectKey]*object) error {
	wanted := map[objectKind]*object{}
	for _, o := range objects {
		wanted[o.kind()] = o
	}
	for kind, w := range s.kinds {
		if wanted[kind] == nil {
			w.end()
			delete(s.kinds, kind)
		}
	}
	for kind, o := range wanted {
		if s.kinds[kind] != nil {
			continue
		}
		w, err := s.watchKind(ctx, o)
		if err != nil {
			return err
		}
		s.kinds[kind] = w
	}
	return nil
}

func (s *Set) watchKind(ctx context.Context, o *object) (*kindWatch, error) {
	informer := metadatainformer.NewFilteredMetadataInformer(s.Metadata, o.resource, metav1.NamespaceAll, 0, nil, func(l *metav1.ListOptions) {
		l.LabelSelector = partOfLabel + "=" + s.id
	}).Informer()
	kind := o.kind()
	see := func(obj any, gone bool) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		if m, ok := obj.(metav1.Object); ok {
			s.changed(objectKey{kind, m.GetNamespace(), m.GetName()}, m, gone)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { see(obj, false) },
		UpdateFunc: func(_, obj any) { see(obj, false) },
		DeleteFunc: func(obj any) { see(obj, true) },
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	w := &kindWatch{stop, make(chan struct{})}
	go func() {
		defer close(w.done)
		informer.RunWithContext(ctx)
	}()
	return w, nil
}

func (w *kindWatch) end() {
	w.stop()
	<-w.done
}

func (s *Set) endWatches() {
	for _, w := range s.kinds {
		w.end()
	}
}
