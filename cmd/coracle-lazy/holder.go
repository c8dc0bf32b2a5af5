package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/image/lazy/server"
	"github.com/coracle-project/coracle/shim/keeper"
)

// keyPrefix starts the keys of layers in the keeper.
const keyPrefix = "lazy/"

// holder gives layers to the keeper: of each, its connection to the kernel and its record, which
// has credentials in it and is therefore a file in memory.
type holder struct {
	dir    string
	name   string
	socket *os.File
	log    *slog.Logger

	mu sync.Mutex
	k  *keeper.Keeper
}

func newHolder(dir, name string, socket *os.File, log *slog.Logger) (*holder, error) {
	k, err := keeper.Dial(dir)
	if err != nil {
		return nil, err
	}
	return &holder{dir: dir, name: name, socket: socket, log: log, k: k}, nil
}

func (h *holder) keeper() *keeper.Keeper {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.k
}

// Hold implements server.Holder.
func (h *holder) Hold(key string, record []byte, conn *os.File) error {
	fd, err := unix.MemfdCreate("coracle-lazy", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("hold layer %s: %w", key, err)
	}
	f := os.NewFile(uintptr(fd), "record")
	defer f.Close()
	if _, err := f.Write(record); err != nil {
		return fmt.Errorf("hold layer %s: %w", key, err)
	}
	if err := h.keeper().Put(keyPrefix+key, "fuse record", conn, f); err != nil {
		return fmt.Errorf("hold layer %s: %w", key, err)
	}
	return nil
}

// Drop implements server.Holder.
func (h *holder) Drop(key string) {
	_ = h.keeper().Del(keyPrefix + key) // a keeper that is gone holds nothing
}

// takeOver goes on with the layers of the process before this one. What cannot be gone on with is
// let go: its files then say that their file system is not connected, rather than keep readers
// waiting.
func (h *holder) takeOver(s *server.Server) {
	keys, err := h.keeper().List(keyPrefix)
	if err != nil {
		h.log.Error("cannot take over lazy layers", "err", err)
		return
	}
	for _, key := range keys {
		if err := h.adopt(s, key); err != nil {
			h.log.Error("lazy layer is lost: containers that run from it have to be started again", "key", key, "err", err)
			_ = h.keeper().Del(key)
		}
	}
}

func (h *holder) adopt(s *server.Server, key string) error {
	meta, files, err := h.keeper().Get(key)
	if err != nil {
		return err
	}
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	if len(files) != 2 || !strings.HasPrefix(meta, "fuse record") {
		closeAll()
		return fmt.Errorf("%d descriptors are held: %q", len(files), meta)
	}
	record, err := io.ReadAll(io.NewSectionReader(files[1], 0, 1<<30))
	if err == nil {
		err = s.Adopt(strings.TrimPrefix(key, keyPrefix), record, files[0])
	}
	if err != nil {
		closeAll()
		return err
	}
	return files[1].Close()
}

// watch gives everything to each new keeper.
func (h *holder) watch(ctx context.Context, s *server.Server) {
	for ctx.Err() == nil {
		k := h.keeper()
		stop := context.AfterFunc(ctx, func() { k.Close() })
		k.Watch()
		stop()
		if ctx.Err() != nil {
			return
		}
		h.log.Warn("keeper is lost; waiting for coracled to start another", "err", k.Err())
		next, err := keeper.Await(ctx, h.dir, func(err error) {
			h.log.Error("cannot wait for a keeper; trying again", "err", err)
		})
		if err != nil {
			return
		}
		h.mu.Lock()
		h.k = next
		h.mu.Unlock()
		if err := next.Put("pass/"+h.name, "listen", h.socket); err != nil && !errors.Is(err, keeper.ErrGone) {
			h.log.Error("keeper refused the socket", "err", err)
		}
		s.HoldAll()
	}
}
