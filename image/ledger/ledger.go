// Package ledger keeps what the image store remembers besides the images themselves, in one bbolt
// file:
//
//	layers   blob digest → diff id: what was once seen to unpack to what
//	leases   name → JSON of Lease
//
// Which images there are is not in it: index.json says that. So a lost ledger costs downloads, and
// nothing else.
package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/coracle-project/coracle/image/damage"
	"github.com/coracle-project/coracle/image/reference"
)

// Ledger is the file, and its content in memory. Its methods may be called concurrently.
type Ledger struct {
	path string
	log  *slog.Logger
	db   *bbolt.DB

	mu     sync.Mutex
	layers map[digest.Digest]digest.Digest
	unsaid map[digest.Digest]digest.Digest // of layers, those not in the file yet
	leases map[string]Lease
}

// Lease keeps blobs and layers that no image names.
type Lease struct {
	Until   time.Time       `json:"until"`
	Digests []digest.Digest `json:"digests"`
}

var (
	bucketLayers = []byte("layers")
	bucketLeases = []byte("leases")
)

// lockTimeout is how long another process may hold the file. The daemon's own lock on its
// root comes first, so that this is a tool that looks into it.
const lockTimeout = 5 * time.Second

// Open opens the file, or makes one. A damaged one is set aside.
func Open(path string, log *slog.Logger) (*Ledger, error) {
	l := &Ledger{path: path, log: log}
	err := l.load()
	if err == nil || !errors.Is(err, errDamaged) {
		return l, err
	}
	aside := damage.Aside(path)
	log.Warn("image ledger set aside: it is damaged; layers may be fetched again", "err", err, "moved", aside)
	if err := os.Rename(path, aside); err != nil {
		return nil, fmt.Errorf("set %s aside: %w", path, err)
	}
	return l, l.load()
}

// errNew is a file that nothing has been written to.
var errNew = errors.New("new ledger")

var errDamaged = errors.New("damaged ledger")

// load reads all of the file, and so finds what is damaged in it.
func (l *Ledger) load() error {
	l.layers, l.unsaid, l.leases = map[digest.Digest]digest.Digest{}, map[digest.Digest]digest.Digest{}, map[string]Lease{}
	err := guarded(func() (err error) {
		if err := damage.CheckFile(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.db, err = bbolt.Open(l.path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return err
		}
		if err := l.db.View(l.read); !errors.Is(err, errNew) {
			return err
		}
		return l.db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(bucketLayers)
			_, err2 := tx.CreateBucketIfNotExists(bucketLeases)
			return errors.Join(err, err2)
		})
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return fmt.Errorf("open %s: another process holds it: %w", l.path, err)
	case !damage.OfFile(err):
		return err
	}
	if l.db != nil {
		_ = guarded(l.db.Close)
		l.db = nil
	}
	return fmt.Errorf("%w: %s: %w", errDamaged, l.path, err)
}

func (l *Ledger) read(tx *bbolt.Tx) error {
	layers, leases := tx.Bucket(bucketLayers), tx.Bucket(bucketLeases)
	if layers == nil || leases == nil {
		return errNew
	}
	err := layers.ForEach(func(k, v []byte) error {
		blob, diffID := digest.Digest(k), digest.Digest(v)
		if err := errors.Join(reference.CheckDigest(blob), reference.CheckDigest(diffID)); err != nil {
			return err
		}
		l.layers[blob] = diffID
		return nil
	})
	if err != nil {
		return err
	}
	return leases.ForEach(func(k, v []byte) error {
		var le Lease
		if err := json.Unmarshal(v, &le); err != nil {
			return err
		}
		l.leases[string(k)] = le
		return nil
	})
}

// guarded makes errors of bbolt's ways to meet damage: panics, and faults in pages of the
// mapped file that are not there.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// UnpacksTo says whether a blob is known to unpack to a layer.
func (l *Ledger) UnpacksTo(blob, diffID digest.Digest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.layers[blob] == diffID
}

// Synced are the layers that Save was called for, which comes after all is on the disk, and the
// blobs that they came from.
func (l *Ledger) Synced() map[digest.Digest]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[digest.Digest]bool, 2*len(l.layers))
	for blob, diffID := range l.layers {
		if _, not := l.unsaid[blob]; !not {
			all[diffID], all[blob] = true, true
		}
	}
	return all
}

// Learn remembers what a blob was seen to unpack to; Save makes it last.
func (l *Ledger) Learn(blob, diffID digest.Digest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.layers[blob] != diffID {
		l.layers[blob], l.unsaid[blob] = diffID, diffID
	}
}

// Forget drops what is known of layers that are gone.
func (l *Ledger) Forget(isGone func(diffID digest.Digest) bool) error {
	l.mu.Lock()
	var gone []digest.Digest
	for blob, diffID := range l.layers {
		if isGone(diffID) {
			gone = append(gone, blob)
			delete(l.layers, blob)
			delete(l.unsaid, blob)
		}
	}
	l.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	return l.update(func(tx *bbolt.Tx) error {
		for _, blob := range gone {
			if err := tx.Bucket(bucketLayers).Delete([]byte(blob)); err != nil {
				return err
			}
		}
		return nil
	})
}

// Save makes last what was learnt of blobs. It comes after their layers are on the disk;
// what other pulls have learnt meanwhile need not be there yet.
func (l *Ledger) Save(blobs iter.Seq[digest.Digest]) error {
	learnt := map[digest.Digest]digest.Digest{}
	l.mu.Lock()
	for blob := range blobs {
		if diffID, unsaid := l.unsaid[blob]; unsaid {
			learnt[blob] = diffID
		}
	}
	l.mu.Unlock()
	if len(learnt) == 0 {
		return nil
	}
	err := l.update(func(tx *bbolt.Tx) error {
		for _, blob := range slices.Sorted(maps.Keys(learnt)) {
			if err := tx.Bucket(bucketLayers).Put([]byte(blob), []byte(learnt[blob])); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.unsaid, func(blob, diffID digest.Digest) bool { return learnt[blob] == diffID })
	return nil
}

// PutLease writes a lease, or deletes it if it is nil.
func (l *Ledger) PutLease(name string, le *Lease) error {
	err := l.update(func(tx *bbolt.Tx) error {
		if le == nil {
			return tx.Bucket(bucketLeases).Delete([]byte(name))
		}
		data, err := json.Marshal(le)
		if err != nil {
			return err
		}
		return tx.Bucket(bucketLeases).Put([]byte(name), data)
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if le == nil {
		delete(l.leases, name)
	} else {
		l.leases[name] = *le
	}
	return nil
}

// Leased returns what leases keep, and the names of those that have ended.
func (l *Ledger) Leased(now time.Time) (keep map[digest.Digest]bool, ended []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	keep = map[digest.Digest]bool{}
	for name, le := range l.leases {
		if !now.Before(le.Until) {
			ended = append(ended, name)
			continue
		}
		for _, d := range le.Digests {
			keep[d] = true
		}
	}
	return keep, ended
}

// Len is how many blobs are known.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.layers)
}

func (l *Ledger) update(f func(tx *bbolt.Tx) error) error {
	if err := guarded(func() error { return l.db.Update(f) }); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	return nil
}

// Close closes the file; that of a nil *Ledger, too, which is none.
func (l *Ledger) Close() error {
	if l == nil || l.db == nil {
		return nil
	}
	return guarded(l.db.Close)
}
