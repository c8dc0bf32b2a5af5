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

// recordVersion is the newest format that this daemon understands. The first records had no
// version. A new field does not change it: a daemon keeps the fields that it does not know.
const recordVersion = 1

// stage is how far a driver is with a pod; it is written before the step it names.
type stage string

const (
	adding    stage = "adding"    // something may be set up
	connected stage = "connected" // Setup has succeeded
	removing  stage = "removing"  // Teardown was asked for
)

func (s stage) known() bool { return s == adding || s == connected || s == removing }

// record is what a driver records about a pod.
type record[T any] interface {
	// versioned returns the record with its version set.
	versioned() T
	// check returns why the record cannot be the pod's.
	check(podID string) error
}

// records is a directory of one JSON file per pod: the truth of what a driver has
// done, or is about to do. It is on a tmpfs, so nothing is synced.
type records[T record[T]] struct {
	dir string
	// aside is the directory where damaged records are kept for the operator.
	aside string
	log   *slog.Logger
	read  func(path string) ([]byte, error) // recordfile.Read, but in tests
	kept  *sync.Map                         // by pod id: *recordfile.Kept, the fields of a newer daemon
}

func newRecords[T record[T]](stateDir, kind string, log *slog.Logger) records[T] {
	return records[T]{
		dir: filepath.Join(stateDir, kind), aside: filepath.Join(stateDir, damagedDir), log: log, read: recordfile.Read,
		kept: &sync.Map{},
	}
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

// ignoringFull ignores a full file system when the record of a teardown is written, because what
// frees space must not wait for space. The old record stays, and recovery repeats the teardown.
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

// loaded is the result of load, by pod id.
type loaded[T any] struct {
	records map[string]T
	// damaged are records that cannot be read or are invalid, with the reason.
	damaged map[string]error
	// left are temporary files of interrupted writes.
	left []string
}

// load reads all records and changes nothing. It returns a *recordfile.NewerError if a newer daemon
// wrote one. A record that cannot be read for a reason that may pass is not damaged: the start
// fails, and is tried again.
func (r records[T]) load() (loaded[T], error) {
	all := loaded[T]{records: map[string]T{}, damaged: map[string]error{}}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return all, fmt.Errorf("read network records: %w", err)
	}
	var w transient.Waits
	entries, err := transient.Try(&w, func() ([]os.DirEntry, error) { return os.ReadDir(r.dir) })
	if err != nil {
		return all, fmt.Errorf("read network records: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		podID, ok := strings.CutSuffix(e.Name(), ".json")
		if atomicfile.IsTemp(e.Name()) {
			all.left = append(all.left, path)
			continue
		}
		if !ok || checkPodID(podID) != nil {
			r.log.Warn("ignoring unknown file among network records", "path", path)
			continue
		}
		rec, err := transient.Try(&w, func() (T, error) { return r.parse(podID) })
		switch {
		case err == nil:
			all.records[podID] = rec
		case recordfile.Newer(err) != nil:
			return all, fmt.Errorf("read network record: %w", err)
		case transient.Is(err):
			return all, fmt.Errorf("read network record: %w", err)
		case errors.Is(err, os.ErrNotExist): // an operator has just removed it
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
	if err := recordfile.CheckNotNewer(r.path(podID), data, recordVersion); err != nil {
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

// tidy removes temporary files of interrupted writes.
func (r records[T]) tidy(left []string) {
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			r.log.Warn("cannot remove temporary file of network records", "path", path, "err", err)
		}
	}
}

// replace keeps a damaged record for the operator and writes another in its place. If nothing is
// known about the pod, it removes the record. The old record stays in place until then: without a
// record, another pod could get the link.
func (r records[T]) replace(podID string, rec *T, why error) {
	path := r.path(podID)
	kept, err := setAside(path, r.aside, filepath.Base(r.dir)+"-"+podID+".json")
	switch {
	case err != nil:
		r.log.Warn("cannot set damaged network record aside", "pod", podID, "path", path, "reason", why, "err", err)
		return // the next start tries again
	case rec == nil:
		err = r.remove(podID)
	default:
		err = r.write(podID, *rec)
	}
	if err != nil {
		r.log.Warn("cannot replace damaged network record", "pod", podID, "path", path, "err", err)
	}
	r.log.Warn("network record was damaged; it was set aside and rebuilt",
		"pod", podID, "path", path, "moved", kept, "reason", why)
}

// damagedDir is the directory of damaged records, in the state directory.
const damagedDir = "damaged"

// setAside gives a damaged file a second name in the directory dir, and returns its path. Anything
// but a file is moved there.
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
				return to, nil // an earlier start got this far
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
