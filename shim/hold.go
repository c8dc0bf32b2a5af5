package shim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/coracle-project/coracle/internal/transient"
	"github.com/coracle-project/coracle/shim/keeper"
	"github.com/coracle-project/coracle/shim/pidfd"
)

// hold is the shim's link to the keeper, which keeps copies of descriptors beyond the
// shim's death. A shim without a keeper (run by containerd itself, or in the moment
// when the keeper is being replaced) does without.
type hold struct {
	dir string // "" for no keeper
	log *slog.Logger

	mu sync.Mutex
	k  *keeper.Keeper // nil while there is none
}

// named is a set of files under short names, as one entry of the keeper.
type named map[string]*os.File

func (h *hold) connect() {
	if h.dir == "" {
		return
	}
	k, err := keeper.Dial(h.dir)
	if err != nil {
		h.log.Warn("no keeper: a killed shim would lose terminals", "error", err)
		return
	}
	h.set(k)
}

func (h *hold) set(k *keeper.Keeper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.k = k
}

func (h *hold) keeper() *keeper.Keeper {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.k
}

// put replaces what is held under key. Without a keeper it does nothing: the files are
// put there when it is back.
func (h *hold) put(key string, files named) {
	k := h.keeper()
	if k == nil {
		return
	}
	names, list := make([]string, 0, len(files)), make([]*os.File, 0, len(files))
	for n, f := range files {
		if f != nil {
			names, list = append(names, n), append(list, f)
		}
	}
	if len(list) == 0 {
		h.drop(key)
		return
	}
	if err := k.Put(key, strings.Join(names, " "), list...); err != nil &&
		!errors.Is(err, keeper.ErrGone) && !errors.Is(err, keeper.ErrHung) && !errors.Is(err, os.ErrClosed) { // the container is being deleted
		h.log.Error("keeper refused descriptors", "key", key, "error", err)
	}
}

// get returns the files held under key; empty if there are none. It fails if this process has no
// free descriptors for them.
func (h *hold) get(key string) (named, error) {
	k := h.keeper()
	if k == nil {
		return named{}, nil
	}
	meta, files, err := k.Get(key)
	if transient.Is(err) {
		return nil, fmt.Errorf("take files of %s from the keeper: %w", key, err)
	}
	if err != nil {
		return named{}, nil
	}
	held := named{}
	names := strings.Fields(meta)
	for i, f := range files {
		if i < len(names) {
			held[names[i]] = f
		} else {
			f.Close()
		}
	}
	if len(files) < len(names) { // unix(7): descriptors that do not fit are dropped
		held.close()
		return nil, fmt.Errorf("take files of %s from the keeper: %w", key, syscall.EMFILE)
	}
	return held, nil
}

// exit asks the keeper how a process ended that was reparented to it when its shim died. Before
// Linux 6.15 only the last parent knows.
func (h *hold) exit(pid int, startTime uint64) (code int32, ok bool) {
	k := h.keeper()
	if k == nil {
		return 0, false
	}
	status, err := k.Exit(pid, startTime)
	return pidfd.ExitCode(status), err == nil
}

func (h *hold) drop(key string) {
	if k := h.keeper(); k != nil {
		_ = k.Del(key) // a keeper that is gone holds nothing
	}
}

// dropAll drops what is held under all keys that begin with prefix.
func (h *hold) dropAll(prefix string) {
	if k := h.keeper(); k != nil {
		_ = k.DelPrefix(prefix)
	}
}

func (n named) close() {
	for _, f := range n {
		if f != nil {
			f.Close()
		}
	}
}

// watch calls again with every new keeper, each time the previous one is gone or hung, until ctx
// ends.
func (h *hold) watch(ctx context.Context, again func()) {
	if h.dir == "" {
		return
	}
	for ctx.Err() == nil {
		if k := h.keeper(); k != nil {
			stop := context.AfterFunc(ctx, func() { k.Close() })
			k.Watch()
			stop()
			if ctx.Err() != nil {
				return
			}
			h.set(nil)
			h.log.Warn("keeper is lost; waiting for the daemon to start another", "error", k.Err())
		}
		k, err := keeper.Await(ctx, h.dir, func(err error) {
			h.log.Error("cannot wait for a keeper; trying again", "error", err)
		})
		if err != nil {
			return
		}
		h.set(k)
		again()
	}
}
