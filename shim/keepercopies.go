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
	"time"

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

	mu   sync.Mutex
	k    *keeper.Keeper // nil while there is none
	hung bool           // there is none because the last one did not answer
}

// named is a set of files under short names, as one entry of the keeper.
type named map[string]*os.File

// hungPatience is how long connect tries a keeper that does not answer. It may only wait for the
// CPU; the daemon replaces one that hangs.
const hungPatience = 5 * time.Second

func (h *hold) connect() {
	if h.dir == "" {
		return
	}
	began := time.Now()
	k, err := keeper.Dial(h.dir)
	for errors.Is(err, keeper.ErrHung) && time.Since(began) < hungPatience {
		k, err = keeper.Dial(h.dir)
	}
	if err != nil {
		h.log.Warn("no keeper: a killed shim would lose terminals", "err", err)
	}
	h.set(k, err)
}

// set changes the keeper; cause is why there is none.
func (h *hold) set(k *keeper.Keeper, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.k, h.hung = k, k == nil && errors.Is(cause, keeper.ErrHung)
}

// lastHung says that there is no keeper because the last one did not answer.
func (h *hold) lastHung() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hung
}

func (h *hold) keeper() *keeper.Keeper {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.k
}

// put replaces what is held under key. Without a keeper it does nothing: the files are
// put there when it is back. It logs and returns a refusal, which leaves what was held before.
func (h *hold) put(key string, files named) error {
	k := h.keeper()
	if k == nil {
		return nil
	}
	names, list := make([]string, 0, len(files)), make([]*os.File, 0, len(files))
	for n, f := range files {
		if f != nil {
			names, list = append(names, n), append(list, f)
		}
	}
	if len(list) == 0 {
		h.drop(key)
		return nil
	}
	err := k.Put(key, strings.Join(names, " "), list...)
	if err == nil || errors.Is(err, keeper.ErrGone) || errors.Is(err, keeper.ErrHung) ||
		errors.Is(err, os.ErrClosed) { // the container is being deleted
		return nil
	}
	h.log.Error("keeper refused descriptors", "key", key, "err", err)
	return fmt.Errorf("give files of %s to the keeper: %w", key, err)
}

// get returns what is held under key; empty if nothing is. It fails with an error that may pass if
// something is held that this process has no room for, or if the keeper does not answer: one that
// went on without its terminal would later have the keeper drop the last descriptor of it.
func (h *hold) get(key string) (named, error) {
	k := h.keeper()
	if k == nil && h.lastHung() {
		return nil, fmt.Errorf("take files of %s from the keeper: %w: %w", key, keeper.ErrHung, syscall.EAGAIN)
	}
	if k == nil {
		return named{}, nil
	}
	meta, files, err := k.Get(key)
	if errors.Is(err, keeper.ErrHung) {
		err = fmt.Errorf("%w: %w", err, syscall.EAGAIN)
	}
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
			h.set(nil, k.Err())
			h.log.Warn("keeper is lost; waiting for the daemon to start another", "err", k.Err())
		}
		k, err := keeper.Await(ctx, h.dir, func(err error) {
			h.log.Error("cannot wait for a keeper; trying again", "err", err)
		})
		if err != nil {
			return
		}
		h.set(k, nil)
		again()
	}
}
