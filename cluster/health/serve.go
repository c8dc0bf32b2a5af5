package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Path is where the states of the parts of a process are, as JSON.
const Path = "/healthz/parts"

// Patience is how long an answer waits for parts that say nothing, on however slow a machine: less
// than `coracle up` waits, so that it learns what the others say.
const Patience = 28 * time.Second

// Handler answers with the states of a board, with ?wait when each part has said whether it works,
// or Patience is over.
func Handler(board *Board) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			ctx, cancel := context.WithTimeout(r.Context(), Patience)
			defer cancel()
			board.Wait(ctx)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(board.States()) // what is wrong with the connection is the client's to notice
	})
}

// Listen opens a socket that only root can reach. One that a killed process has left is replaced.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return (&net.ListenConfig{Control: private}).Listen(ctx, "unix", path)
}

// Serve answers on listener until ctx ends.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", listener.Addr(), err)
	}
	return nil
}

// private has a socket made with the mode 0600: a socket's file gets the mode that its descriptor
// has when it is bound, so that there is no moment when others could connect.
func private(_, _ string, conn syscall.RawConn) error {
	var err error
	if e := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}
