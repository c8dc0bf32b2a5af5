package image

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/daemon"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
)

// Archive is what a Preload knows of an archive of images.
type Archive struct {
	// Size and Changed are those of the file, or of the index of a directory, when it was loaded.
	Size    int64     `json:"size"`
	Changed time.Time `json:"changed"`
	// Images are the ids of the images in it. Empty if it could not be loaded: Error says why.
	Images []string `json:"images,omitempty"`
	Error  string   `json:"error,omitempty"`
	// Pinned says that no collection removes the images while the file is as it is.
	Pinned bool `json:"pinned,omitempty"`
}

// Preload loads the archives of dir into the coracled at socket, except those that are in last,
// unchanged, and whose images the daemon still has. It returns what last has to be the next time.
// An archive that cannot be loaded does not keep the others back. dir may be missing. When ctx
// ends, what was loaded until then is returned, with the error. Each archive is told of when it is
// done, and progress is shown on out.
func Preload(ctx context.Context, socket, dir string, last map[string]Archive, out io.Writer,
	tell func(string),
) (map[string]Archive, error) {
	names, err := archives(dir)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	next := map[string]Archive{}
	d := daemon.New(func() string { return socket })
	err = d.Call(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		c := imagesv1.NewImagesClient(conn)
		all, err := c.List(ctx, &imagesv1.ListRequest{})
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, image := range all.GetImages() {
			have[image.GetId()] = true
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			a, err := archiveAt(path)
			was, known := last[name]
			lacks := func(id string) bool { return !have[id] }
			if err == nil && known && was.Error == "" && was.Pinned && was.Size == a.Size && was.Changed.Equal(a.Changed) &&
				!slices.ContainsFunc(was.Images, lacks) {
				next[name] = was
				continue
			}
			if err == nil {
				err = checkArchive(dir, path)
			}
			if err == nil {
				a.Images, err = loadArchive(ctx, c, path, out)
				a.Pinned = err == nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				a.Error = d.Plain(err).Error()
				tell(path + ": " + a.Error)
			} else {
				tell(path + ": its images are loaded")
			}
			next[name] = a
		}
		return nil
	})
	if err != nil { // what was not looked at is what it was
		kept := map[string]Archive{}
		maps.Copy(kept, last)
		maps.Copy(kept, next)
		next = kept
	}
	return next, err
}

// archives are the names of what may be archives in dir, which may be missing: regular files, and
// directories with the index of an OCI image layout. A FIFO would be waited for, and the root of a
// file system has a directory lost+found.
func archives(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		st, err := os.Stat(path)
		switch {
		case err != nil: // such as a link to nothing: loading it says why
		case st.IsDir():
			if _, err := os.Lstat(filepath.Join(path, layoutIndex)); err != nil {
				continue
			}
		case !st.Mode().IsRegular():
			continue
		}
		names = append(names, e.Name())
	}
	return names, nil
}

// checkArchive refuses an archive in dir that other users than root and this process's may write,
// or replace: its images may have any names.
func checkArchive(dir, path string) error {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for _, above := range []string{dir, filepath.Dir(target)} {
		info, err := os.Stat(above)
		if err != nil {
			return err
		}
		if err := checkWriters(above, info); err != nil {
			return err
		}
	}
	return filepath.WalkDir(target, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() == fs.ModeSymlink { // links are left out of a layout
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		return checkWriters(path, info)
	})
}

func checkWriters(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write it: chmod go-w %s", path)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d: chown root %s", s.Uid, path)
	}
	return nil
}

// layoutIndex is the index of an OCI image layout.
const layoutIndex = "index.json"

// archiveFile is the file of an archive that changes with it.
func archiveFile(path string) string {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		return filepath.Join(path, layoutIndex)
	}
	return path
}

func archiveAt(path string) (Archive, error) {
	st, err := os.Stat(archiveFile(path))
	if err != nil {
		return Archive{}, err
	}
	return Archive{Size: st.Size(), Changed: st.ModTime().UTC()}, nil
}

// longestLoad is how long loading one archive may take.
const longestLoad = 30 * time.Minute

// loadArchive loads an archive, and returns the ids of its images.
func loadArchive(ctx context.Context, c imagesv1.ImagesClient, path string, out io.Writer) (ids []string, err error) {
	absolute, err := filepath.Abs(archiveFile(path))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, longestLoad)
	defer stop()
	err = openArchive(path, func(r io.Reader, size int64) error {
		s, err := c.Load(ctx)
		if err != nil {
			return err
		}
		send := func(first bool, data []byte) error {
			m := &imagesv1.LoadRequest{Data: data}
			if first {
				m.Archive = absolute
			}
			return s.Send(m)
		}
		p := bar.New(out, "load "+path)
		p.Total(size)
		defer p.Abort()
		if err := transmit(r, p, send); err != nil {
			return err
		}
		answer, err := s.CloseAndRecv()
		for _, image := range answer.GetImages() {
			ids = append(ids, image.GetId())
		}
		return err
	})
	return ids, err
}
