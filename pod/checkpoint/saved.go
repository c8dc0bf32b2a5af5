package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/safepath"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/ocispec"
	"github.com/coracle-project/coracle/pod/state"
)

// A saved container is a directory, or an archive of one, in the layout that CRI-O, podman
// and checkpointctl know:
//
//	config.dump       Description
//	spec.dump         the OCI spec that it was made from
//	rootfs-diff.tar   what it had written, as a layer of an image (not compressed)
//	checkpoint/       CRIU's images, and the names of the streams (shim/FORMATS.md)
const (
	ConfigName = "config.dump"
	SpecName   = "spec.dump"
	DiffName   = "rootfs-diff.tar"
	ImagesName = "checkpoint"
)

// Description is config.dump; the names of its fields are podman's.
type Description struct {
	ID             string    `json:"id"`
	Name           string    `json:"name"`
	ImageID        string    `json:"rootfsImage,omitempty"`
	ImageRef       string    `json:"rootfsImageRef,omitempty"`
	ImageName      string    `json:"rootfsImageName,omitempty"`
	Runtime        string    `json:"runtime,omitempty"`
	CreatedAt      time.Time `json:"createdTime"`
	CheckpointedAt time.Time `json:"checkpointedTime"`
}

// MaxJSON bounds the JSON files of a checkpoint, which may be anybody's.
const MaxJSON = 4 << 20

// Saved is a saved container as it was read.
type Saved struct {
	dir    string
	config Description
	spec   specs.Spec
}

// Open reads what was saved in dir; fs.ErrNotExist if it is no saved container.
func Open(dir string) (*Saved, error) {
	root, err := safepath.Open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	s := &Saved{dir: dir}
	for name, into := range map[string]any{ConfigName: &s.config, SpecName: &s.spec} {
		b, err := root.ReadFile(name, MaxJSON)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(b, into); err != nil {
			return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s: %w", name, err)
		}
	}
	if s.spec.Process == nil || s.spec.Linux == nil {
		return nil, errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s has no process, or is not of Linux", SpecName)
	}
	return s, CheckImages(s.Images())
}

// images is where CRIU's images are.
func (s *Saved) Images() string { return filepath.Join(s.dir, ImagesName) }

// CheckImages wants a directory, since CRIU gets its path and must not be led elsewhere, and
// nothing but files in it: a link would have a host's file read into the restored process's memory,
// and a FIFO have the shim wait forever.
func CheckImages(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s is not a directory", ImagesName)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			return errdefs.Errorf(errdefs.ErrInvalid, "checkpoint: %s/%.80q is not a file", ImagesName, e.Name())
		}
	}
	return nil
}

// diff opens what the container had written; nil if that was not saved.
func (s *Saved) diff() (*os.File, error) {
	root, err := safepath.Open(s.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenRegular(DiffName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// writeSaved writes the two JSON files of a saved container; spec is its bundle's.
func writeSaved(dir string, r *state.ContainerRecord, bundle string) error {
	b, err := json.MarshalIndent(Description{
		ID: r.ID, Name: r.Config.Name, ImageID: r.ImageID, ImageRef: r.ImageRef, ImageName: r.Config.Image,
		Runtime: "coracle", CreatedAt: r.CreatedAt, CheckpointedAt: time.Now(),
	}, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigName), b, 0o600); err != nil {
		return err
	}
	return copyFile(filepath.Join(dir, SpecName), filepath.Join(bundle, ocispec.FileName))
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}
