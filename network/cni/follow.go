package cni

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Follower keeps the current CNI configuration with inotify. Checks whether pods can be connected
// need no disk, and the log shows the result of a change at once. Files, the directory and links on
// the way to it may be created, removed and replaced. If the directory does not exist, its nearest
// existing parent is watched. The kernel does not report a rename further up to a watch below it.
//
// A pod is connected with the files as they are then, because an event may not have arrived yet.
type Follower struct {
	Log     *slog.Logger
	now     atomic.Pointer[state] // nil: nothing is followed
	watcher *fsnotify.Watcher
	done    chan struct{} // closed when the goroutine has ended

	mu  sync.Mutex // one refresh at a time
	dir string
	way way // to dir, as it is watched
}

// state is what Find said.
type state struct {
	list *libcni.NetworkConfigList
	err  error
}

// Start starts to follow dir. If inotify is unavailable (a user has a limited number of instances),
// nothing is followed, and the files are read each time.
func (f *Follower) Start(dir string) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		f.Log.Warn("changes of the CNI configuration are not logged: inotify is unavailable", "err", err)
		return
	}
	f.watcher, f.done = w, make(chan struct{})
	f.Follow(dir)
	go f.run()
}

// Close ends the goroutine; nothing is followed then.
func (f *Follower) Close() error {
	if f.watcher == nil {
		return nil
	}
	err := f.watcher.Close()
	<-f.done
	f.now.Store(nil) // now that nothing sets it
	return err
}

// Follow has another directory followed from now on.
func (f *Follower) Follow(dir string) {
	if f.watcher == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dir = filepath.Clean(dir)
	f.refreshLocked()
}

// Current is the configuration of dir as it was last seen, or as it is where that is not followed.
func (f *Follower) Current(dir string) (*libcni.NetworkConfigList, error) {
	if s := f.now.Load(); s != nil {
		return s.list, s.err
	}
	return Find(dir)
}

func (f *Follower) run() {
	defer close(f.done)
	for {
		select {
		case e, ok := <-f.watcher.Events:
			if !ok {
				return
			}
			f.seen(e.Name)
		case err, ok := <-f.watcher.Errors:
			if !ok {
				return
			}
			f.Log.Warn("events of the CNI configuration were lost, reading it again", "err", err)
			f.seen("")
		}
	}
}

// seen is told the path of what has changed; empty: anything may have.
func (f *Follower) seen(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if path == "" || f.way.concerns(path) {
		f.refreshLocked()
	}
}

// refreshLocked watches what there is now, and then reads it: what changes after the reading is
// told. Where not all of it can be watched, nothing is followed until a change is told.
func (f *Follower) refreshLocked() {
	if err := f.watchLocked(f.dir); err != nil {
		f.now.Store(nil)
		f.Log.Warn("the CNI configuration cannot be watched: it is read each time", "dir", f.dir, "err", err)
		return
	}
	list, err := Find(f.dir)
	is := &state{list, err}
	was := f.now.Swap(is)
	if was == nil || !was.same(is) {
		is.tell(f.Log, f.dir, was == nil)
	}
}

// watchLocked replaces all watches: a directory that was replaced by another of its name would not
// be noticed by the old ones. Each directory that may lead elsewhere is watched, so that what comes
// in its place is told.
func (f *Follower) watchLocked(dir string) error {
	for _, path := range f.watcher.WatchList() {
		_ = f.watcher.Remove(path) // of what is gone there is none
	}
	w, err := wayTo(dir)
	for err == nil {
		var all bool
		if all, err = f.watchWay(w); err != nil {
			return err
		}
		// Another look, because it may have changed before it was watched.
		was := w
		if w, err = wayTo(dir); all && w.same(was) {
			f.way = w
			if w.end == "" {
				return err
			}
			return errors.Join(err, f.watchEntries(w.end))
		}
	}
	return err
}

// watchWay watches what a directory is reached by, and says whether all of it was there.
func (f *Follower) watchWay(w way) (all bool, err error) {
	for _, turn := range w.turns {
		if there, err := f.add(filepath.Dir(turn)); !there {
			return false, err
		}
	}
	if w.end == "" {
		return true, nil
	}
	return f.add(w.end)
}

// watchEntries watches directories in dir: plugins of a list may be in files of one with its name.
func (f *Follower) watchEntries(dir string) error {
	entries, _ := os.ReadDir(dir) // its going is told
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch e.Type() {
		case fs.ModeDir:
			if _, err := f.add(path); err != nil {
				return err
			}
		case fs.ModeSymlink:
			return fmt.Errorf("%s is a link, and what it leads to may change elsewhere", path)
		}
	}
	return nil
}

// add watches a path, if it is there. Other errors are mostly that a user has only so many watches.
func (f *Follower) add(path string) (there bool, err error) {
	err = f.watcher.Add(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("watch %s: %w", path, err)
	}
	return true, nil
}

func (s *state) same(o *state) bool {
	if s.err != nil || o.err != nil {
		return s.err != nil && o.err != nil && s.err.Error() == o.err.Error()
	}
	if s.list == nil || o.list == nil {
		return s.list == o.list
	}
	return bytes.Equal(s.list.Bytes, o.list.Bytes) &&
		slices.EqualFunc(s.list.Plugins, o.list.Plugins, func(a, b *libcni.PluginConfig) bool { return bytes.Equal(a.Bytes, b.Bytes) })
}

// tell logs what is in force now; that there was no configuration at first and is none is no news.
func (s *state) tell(log *slog.Logger, dir string, first bool) {
	switch {
	case s.err != nil:
		log.Warn("the CNI configuration is broken, no pod can be connected", "dir", dir, "err", s.err)
	case s.list != nil:
		log.Info("a CNI configuration is in force", "dir", dir, "network", s.list.Name)
	case !first:
		log.Info("no CNI configuration any more: new pods use the built-in network", "dir", dir)
	}
}
