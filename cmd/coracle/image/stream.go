package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/cmd/coracle/bar"
	"github.com/coracle-project/coracle/cmd/coracle/output"
	imagesv1 "github.com/coracle-project/coracle/image/api/v1"
	"github.com/coracle-project/coracle/internal/atomicfile"
)

// chunkStream is what Save and Export answer with.
type chunkStream interface {
	Recv() (*imagesv1.Chunk, error)
}

// receive has what comes read, and shows progress.
func receive(s chunkStream, p *bar.Progress, read func(io.Reader) error) error {
	r := &chunkReader{s: s, p: p}
	err := read(r)
	if r.err != nil {
		err = r.err // what read makes of it is only a consequence
	}
	if err == nil {
		// The daemon's last word may be an error after the last byte.
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		p.Abort()
		return err
	}
	p.End()
	return nil
}

type chunkReader struct {
	s    chunkStream
	p    *bar.Progress
	left []byte
	err  error // of the stream, but io.EOF
}

func (r *chunkReader) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		m, err := r.s.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = err
			}
			return 0, err
		}
		if m.GetTotal() > 0 {
			r.p.Total(m.GetTotal())
		}
		for _, n := range m.GetNotes() {
			r.p.Note(n)
		}
		r.left = m.GetData()
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	r.p.Add(n)
	return n, nil
}

// transmit sends all of r in pieces, at least one. If the daemon has ended the call
// there is no error: the answer says why.
func transmit(r io.Reader, p *bar.Progress, send func(first bool, data []byte) error) error {
	buf := make([]byte, pieceSize)
	for first := true; ; first = false {
		n, err := io.ReadFull(r, buf)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			p.Abort()
			return err
		}
		if n > 0 || first {
			if serr := send(first, buf[:n]); errors.Is(serr, io.EOF) {
				return nil
			} else if serr != nil {
				p.Abort()
				return serr
			}
			p.Add(n)
		}
		if err != nil {
			return nil
		}
	}
}

// fromFile is openArchive, or reads standard input if file is "".
func fromFile(cmd *cobra.Command, file string, read func(r io.Reader, size int64) error) error {
	if file == "" {
		in := cmd.InOrStdin()
		if f, ok := in.(*os.File); ok && output.IsTerminal(f) {
			return errors.New("standard input is a terminal: name the archive with --file")
		}
		return read(in, 0)
	}
	return openArchive(file, read)
}

// openArchive opens an archive: a file, or a directory with an OCI image layout, which is read as
// the archive of it. Its size is 0 if it is not known.
func openArchive(file string, read func(r io.Reader, size int64) error) error {
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	if st.IsDir() {
		r, w := io.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.CloseWithError(packLayout(w, file))
		}()
		err := read(r, 0)
		_ = r.Close()
		<-done
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return read(f, st.Size())
}

// toFile has an archive written to a file, which is there only when it is whole, or to
// standard output. The file is for its owner only, as images may be.
func (i *images) toFile(cmd *cobra.Command, file string, write func(io.Writer) error) error {
	if file == "" {
		if f, ok := cmd.OutOrStdout().(*os.File); ok && output.IsTerminal(f) {
			return errors.New("standard output is a terminal: name a file with --file")
		}
		return write(cmd.OutOrStdout())
	}
	if st, err := os.Stat(file); err == nil && !st.Mode().IsRegular() {
		return writeInto(file, write) // a device or a pipe is not to be replaced
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	if err = i.daemon.Plain(write(f)); err == nil {
		err = f.Sync() // or an empty file could take the place of one that was whole, after a power cut
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func writeInto(file string, write func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// layoutFiles are the files that an OCI image layout consists of.
var layoutFiles = regexp.MustCompile(`^(oci-layout|index\.json|blobs/sha256/[0-9a-f]{64})$`)

// checkNewDir fails if there is something that a new directory cannot replace.
func checkNewDir(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && len(entries) > 0:
		return fmt.Errorf("directory %s is not empty", dir)
	}
	return err
}

// extractLayout writes an OCI image layout that comes as an archive to a new directory.
func extractLayout(r io.Reader, dir string) error {
	temp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(dir)), "."+filepath.Base(dir)+".*")
	if err != nil {
		return err
	}
	err = os.MkdirAll(filepath.Join(temp, "blobs", "sha256"), 0o755)
	for tr := tar.NewReader(r); err == nil; {
		var h *tar.Header
		if h, err = tr.Next(); err != nil {
			break
		}
		if !layoutFiles.MatchString(h.Name) {
			err = fmt.Errorf("the daemon sends %q, which does not belong in an OCI image layout", h.Name)
			break
		}
		err = writeFile(filepath.Join(temp, h.Name), tr)
	}
	if errors.Is(err, io.EOF) {
		all := filepath.Join(temp, "blobs")
		err = errors.Join(atomicfile.Sync(filepath.Join(all, "sha256")), atomicfile.Sync(all), atomicfile.Sync(temp))
		if err == nil {
			err = os.Rename(temp, dir) // replaces an empty directory only
		}
	}
	if err != nil {
		_ = os.RemoveAll(temp)
	}
	return err
}

func writeFile(path string, r io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, r); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// packLayout writes a directory with an OCI image layout as an archive. Whatever else is
// in it is left out.
func packLayout(w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if !e.Type().IsRegular() || !layoutFiles.MatchString(name) {
			return nil
		}
		return packFile(tw, name, path)
	})
	return errors.Join(err, tw.Close())
}

func packFile(tw *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: st.Size(), Mode: 0o644}); err != nil {
		return err
	}
	_, err = io.Copy(tw, f)
	return err
}
