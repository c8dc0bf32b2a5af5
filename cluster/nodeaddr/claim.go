package nodeaddr

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ErrClaimed says that another process has the name.
var ErrClaimed = errors.New("another process of this machine has it")

// Claim gives this process a name that no other process of this network namespace gets until
// release is called or the process ends, however it ends. The name is that of an empty nftables
// table with an owner. Before Linux 5.12, and without nftables, every process gets it.
func Claim(name string, log *slog.Logger) (release func() error, err error) {
	t, err := openTable(name)
	if err != nil {
		return unclaimed(name, err, log)
	}
	if err = t.own(); err == nil {
		return t.remove, nil
	}
	_, missing := t.conn.ListTableOfFamily(name, nftables.TableFamilyINet)
	closed := t.conn.CloseLasting()
	if errors.Is(err, unix.EPERM) && missing == nil {
		return nil, fmt.Errorf("claim %s: %w", name, ErrClaimed)
	}
	return unclaimed(name, errors.Join(err, closed), log)
}

func unclaimed(name string, err error, log *slog.Logger) (release func() error, _ error) {
	log.Debug("a name is not claimed", "name", name, "err", err)
	return func() error { return nil }, nil
}
