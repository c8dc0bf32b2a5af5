package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
)

// ErrJoining is the error of Forget and Join while another Join runs.
var ErrJoining = errors.New("this machine is joining a cluster")

// stagingOf is where a Join has the directory with the keys of the cluster until all else is there.
// It is locked meanwhile.
func stagingOf(root string) string { return filepath.Join(root, "pki.joining") }

// Forget removes what a Join that was killed has left in root: the keys of the cluster, which a
// machine that is no control-plane node must not have, and the file that makes its etcd a member of
// that cluster.
func Forget(root string) error {
	staging := stagingOf(root)
	lock, err := lockStaging(staging)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(filepath.Join(root, "pki")); errors.Is(err, fs.ErrNotExist) { // else the file may be this machine's own
		if err := os.Remove(etcd.PeersFile(root)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(staging)
}

func lockStaging(staging string) (*os.File, error) {
	f, err := os.Open(staging)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s is in use", ErrJoining, staging)
		}
		return nil, fmt.Errorf("lock %s: %w", staging, err)
	}
	return f, nil
}
