package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/internal/transient"
)

// ErrVersion says that a record was written by a daemon too new for this one. Nothing has been
// changed then.
var ErrVersion = errors.New("unknown record version")

// recordVersion is the newest format that this daemon understands. The first records said none. A
// new field does not change it: fields that a daemon does not know are kept.
const recordVersion = 1

// stage is how far a driver is with a pod; it is written before the step it names.
type stage string

const (
	adding    stage = "adding"    // something may be set up
	connected stage = "connected" // Setup has succeeded
	removing  stage = "removing"  // Teardown was asked for
)

func (s stage) known() bool { return s == adding || s == connected || s == removing }

// record is what a driver keeps of a pod.
type record[T any] interface {
	// versioned returns the record with its version set.
	versioned() T
	// check says why the record cannot be that of the pod.
	check(podID string) error
}

// records is a directory of one JSON file per pod: the truth of what a driver has
// done, or is about to do. It is on a tmpfs, so nothing is synced.
type records[T record[T]] struct {
	dir string
	// aside is where damaged records are kept for the operator.
	aside string
	log   *slog.Logger
	read  func(path string) ([]byte, error) // recordfile.Read, but in tests
	kept  *sync.Map                         // by pod id: *recordfile.Kept, the fields of a newer daemon
}

func newRecords[T record[T]](stateDir, kind string, log *slog.Logger) records[T] {
	return records[T]{dir: filepath.Join(stateDir, kind), aside: filepath.Join(stateDir, damagedDir), log: log, read: recordfile.Read, kept: &sync.Map{}}
}

func (r records[T]) path(podID string) string { return filepath.Join(r.dir, podID+".json") }

func (r records[T]) write(podID string, rec T) error {
	kept, _ := r.kept.Load(podID)
	k, _ := kept.(*recordfile.Kept)
	data, err := k.Marshal(rec.versioned())
	if err != nil {
		return fmt.Errorf("network record of pod %s: %w", podID, err)
	}
	if err := atomicfile.Write(r.path(podID), data, 0o600); err != nil {
		return fmt.Errorf("network record of pod %s: %w", podID, err)
	}
	return nil
}

// ignoringFull forgives a full file system to the record of a teardown: what is to be freed must
// not wait for room. The record stays as it was, and recovery tears down again.
func ignoringFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil
	}
	return err
}

func (r records[T]) remove(podID string) error {
	r.kept.Delete(podID)
	if err := os.Remove(r.path(podID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("network record of pod %s: %w", podID, err)
	}
	return nil
}

// loaded is what load has found, by pod id.
type loaded[T any] struct {
	records map[string]T
	// damaged are records that cannot be read or make no sense, with the reason.
	damaged map[string]error
	// left are files of writes that were cut off.
	left []string
}

// load reads all records and changes nothing. ErrVersion if one is of a newer daemon. A record that
// cannot be read for a reason that may pass is no damaged one: the start fails, and comes again.
func (r records[T]) load() (loaded[T], error) {
	all := loaded[T]{records: map[string]T{}, damaged: map[string]error{}}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return all, fmt.Errorf("network records: %w", err)
	}
	var w transient.Waits
	entries, err := transient.Try(&w, func() ([]os.DirEntry, error) { return os.ReadDir(r.dir) })
	if err != nil {
		return all, fmt.Errorf("network records: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		podID, ok := strings.CutSuffix(e.Name(), ".json")
		if atomicfile.IsTemp(e.Name()) {
			all.left = append(all.left, path)
			continue
		}
		if !ok || checkPodID(podID) != nil {
			r.log.Warn("ignoring a file among the network records", "path", path)
			continue
		}
		rec, err := transient.Try(&w, func() (T, error) { return r.parse(podID) })
		switch {
		case err == nil:
			all.records[podID] = rec
		case errors.Is(err, ErrVersion):
			return all, fmt.Errorf("network record %s: %w", path, err)
		case transient.Is(err):
			return all, fmt.Errorf("network record: %w", err)
		case errors.Is(err, os.ErrNotExist): // an operator has just taken it away
		default:
			all.damaged[podID] = err
		}
	}
	return all, nil
}

func (r records[T]) parse(podID string) (rec T, err error) {
	data, err := r.read(r.path(podID))
	if err != nil {
		return rec, err
	}
	if err := checkVersion(data); err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if k := recordfile.Keep(data, &rec); k != nil {
		r.kept.Store(podID, k)
	}
	return rec, rec.check(podID)
}

// checkVersion looks at the version alone: the rest of a newer record may be of another shape.
func checkVersion(data []byte) error {
	var v struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(data, &v) == nil && v.Version > recordVersion {
		return fmt.Errorf("%w %d, this daemon knows up to %d", ErrVersion, v.Version, recordVersion)
	}
	return nil
}

// tidy removes what writes that were cut off have left.
func (r records[T]) tidy(left []string) {
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			r.log.Warn("a temporary file of the network records stays", "path", path, "err", err)
		}
	}
}

// replace keeps a damaged record for the operator and writes another in its place, or removes it if
// there is nothing to say of the pod. The old one stays in place until then: a record that is missing
// would give the pod's link away.
func (r records[T]) replace(podID string, rec *T, why error) {
	path := r.path(podID)
	kept, err := setAside(path, r.aside, filepath.Base(r.dir)+"-"+podID+".json")
	switch {
	case err != nil:
		r.log.Warn("network record is damaged and cannot be set aside", "pod", podID, "path", path, "reason", why, "err", err)
		return // the next start tries again
	case rec == nil:
		err = r.remove(podID)
	default:
		err = r.write(podID, *rec)
	}
	if err != nil {
		r.log.Warn("damaged network record cannot be replaced", "pod", podID, "path", path, "err", err)
	}
	r.log.Warn("network record was damaged: it is set aside, what it stood for is read from the kernel",
		"pod", podID, "path", path, "moved", kept, "reason", why)
}

// damagedDir is where damaged records are kept, in the state directory.
const damagedDir = "damaged"

// setAside gives a damaged file a second name in the directory dir, and returns its path. What is no
// file is moved there.
func setAside(path, dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	st, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	for i := 1; ; i++ {
		to := filepath.Join(dir, name)
		if i > 1 {
			to += fmt.Sprintf(".%d", i)
		}
		if there, err := os.Lstat(to); err == nil {
			if os.SameFile(st, there) {
				return to, nil // a start before this one came so far
			}
			continue
		}
		if st.Mode().IsRegular() {
			return to, os.Link(path, to)
		}
		return to, os.Rename(path, to)
	}
}

// checkPodID keeps pod ids from naming anything but one file.
func checkPodID(id string) error {
	if id == "" || len(id) > 200 || id[0] == '.' || strings.ContainsAny(id, "/\x00") {
		return fmt.Errorf("invalid pod id %q", id)
	}
	return nil
}
