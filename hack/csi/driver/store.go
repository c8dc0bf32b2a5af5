package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// volume is what the controller service knows about a volume.
type volume struct {
	ID       string          `json:"id"`
	Name     string          `json:"name"`
	Bytes    int64           `json:"bytes"`
	Source   string          `json:"source,omitempty"` // snapshot:ID or volume:ID that it was made of
	Nodes    map[string]bool `json:"nodes,omitempty"`  // nodes it is attached to; true: for reading only
	OfAPod   bool            `json:"ofAPod,omitempty"` // an inline volume, which ends with its pod
	Mode     string          `json:"mode,omitempty"`   // access mode of the attachment
	Modified time.Time       `json:"modified"`
}

// snapshot is what the controller service knows about a snapshot.
type snapshot struct {
	ID     string    `json:"id"`
	Name   string    `json:"name"`
	Volume string    `json:"volume"`
	Bytes  int64     `json:"bytes"`
	Taken  time.Time `json:"taken"`
}

// store is the directory. Records are replaced as a whole, and an image is there before its record:
// a volume without a record does not exist.
type store struct{ dir string }

func (s store) prepare() error {
	for _, name := range []string{"volumes", "snapshots", "nodes", "abnormal", "faults", "reached"} {
		if err := os.MkdirAll(filepath.Join(s.dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// makeID is the id that belongs to a name.
func makeID(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:12])
}

// path is that of a file. An id that is none of ours is no path either.
func (s store) path(kind, id, suffix string) string {
	if id == "" || len(id) > 200 || strings.ContainsAny(id, "/\x00") || strings.HasPrefix(id, ".") {
		id = "none-" + makeID(id)
	}
	return filepath.Join(s.dir, kind, id+suffix)
}

func (s store) image(kind, id string) string { return s.path(kind, id, ".img") }

func (s store) volume(id string) (volume, error) {
	return read[volume](s.path("volumes", id, ".json"), "volume", id)
}

func (s store) snapshot(id string) (snapshot, error) {
	return read[snapshot](s.path("snapshots", id, ".json"), "snapshot", id)
}

func (s store) saveVolume(v volume) error {
	v.Modified = time.Now()
	return write(s.path("volumes", v.ID, ".json"), v)
}

func (s store) saveSnapshot(sn snapshot) error { return write(s.path("snapshots", sn.ID, ".json"), sn) }

func (s store) remove(kind, id string) error {
	for _, suffix := range []string{".json", ".img", ".img.new"} {
		if err := os.Remove(s.path(kind, id, suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// all returns the records of a kind, in the order of their ids.
func all[T any](s store, kind string) ([]T, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, kind, "*.json"))
	if err != nil {
		return nil, err
	}
	var list []T
	for _, file := range files {
		one, err := read[T](file, kind, filepath.Base(file))
		if status.Code(err) == codes.NotFound { // deleted meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func read[T any](file, what, id string) (T, error) {
	var record T
	data, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return record, status.Errorf(codes.NotFound, "%s %q does not exist", what, id)
	case err == nil:
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return record, status.Errorf(codes.Internal, "%s %q: %v", what, id, err)
	}
	return record, nil
}

func write(file string, record any) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = os.WriteFile(file+".new", data, 0o644)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// makeImage makes an image of a size, with the data of another one unless from is empty.
func (s store) makeImage(kind, id, from string, size int64) error {
	at := s.image(kind, id)
	f, err := os.Create(at + ".new")
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	defer f.Close()
	if from != "" {
		if err := copyData(f, from); err != nil {
			return status.Errorf(codes.Internal, "copy %s: %v", from, err)
		}
	}
	if err := errors.Join(f.Truncate(size), f.Sync(), os.Rename(at+".new", at)); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// copyData copies a file, but not its holes.
func copyData(to *os.File, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	for at := int64(0); ; {
		start, err := unix.Seek(int(source.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // no more data
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = unix.Seek(int(source.Fd()), start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(to, start), io.NewSectionReader(source, start, at-start)); err != nil {
			return err
		}
	}
}

func (s store) announceNode(id string) error {
	if id == "" {
		return errors.New("the node service needs -node")
	}
	return os.WriteFile(s.path("nodes", id, ""), nil, 0o644)
}

func (s store) hasNode(id string) bool { return exists(s.path("nodes", id, "")) }

// condition is what the file abnormal/ID says of a volume.
func (s store) condition(id string) (message string, abnormal bool) {
	text, err := os.ReadFile(s.path("abnormal", id, ""))
	if err != nil {
		return "well", false
	}
	return strings.TrimSpace(string(text)), true
}

// busy are the volumes and snapshots that calls are under way for.
type busy struct {
	mu  sync.Mutex
	ids map[string]bool
}

// take reserves an id until release is called.
func (b *busy) take(id string) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ids[id] {
		return nil, status.Errorf(codes.Aborted, "another call for %q is under way", id)
	}
	if b.ids == nil {
		b.ids = map[string]bool{}
	}
	b.ids[id] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ids, id)
	}, nil
}

// missing is the error for a field that a request does not have.
func missing(field string) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf("%s is missing", field))
}
