package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// stage is how far a driver is with a pod; it is written before the step it names.
type stage string

const (
	adding    stage = "adding"    // something may be set up
	connected stage = "connected" // Setup has succeeded
	removing  stage = "removing"  // Teardown was asked for
)

// records is a directory of one JSON file per pod: the truth of what a driver has
// done, or is about to do. It is on a tmpfs, so nothing is synced.
type records[T any] struct{ dir string }

func (r records[T]) path(podID string) string { return filepath.Join(r.dir, podID+".json") }

func (r records[T]) write(podID string, rec T) error {
	data, err := json.Marshal(rec)
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
	if err := os.Remove(r.path(podID)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("network record of pod %s: %w", podID, err)
	}
	return nil
}

// load reads all records by pod id.
func (r records[T]) load() (map[string]T, error) {
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, fmt.Errorf("network records: %w", err)
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("network records: %w", err)
	}
	all := map[string]T{}
	for _, e := range entries {
		podID, ok := strings.CutSuffix(e.Name(), ".json")
		if atomicfile.IsTemp(e.Name()) || !ok {
			// What an interrupted write left.
			if err := os.Remove(filepath.Join(r.dir, e.Name())); err != nil {
				return nil, fmt.Errorf("network records: %w", err)
			}
			continue
		}
		data, err := os.ReadFile(filepath.Join(r.dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("network records: %w", err)
		}
		var rec T
		if err := json.Unmarshal(data, &rec); err != nil {
			return nil, fmt.Errorf("network record %s: %w", filepath.Join(r.dir, e.Name()), err)
		}
		all[podID] = rec
	}
	return all, nil
}

// checkPodID keeps pod ids from naming anything but one file.
func checkPodID(id string) error {
	if id == "" || len(id) > 200 || id[0] == '.' || strings.ContainsAny(id, "/\x00") {
		return fmt.Errorf("invalid pod id %q", id)
	}
	return nil
}
