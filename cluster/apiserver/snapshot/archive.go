package snapshot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/keyutil"
)

// smallLimit bounds the files of an archive that are read into memory.
const smallLimit = 1 << 20

// archive is one that is being written.
type archive struct {
	tar     *tar.Writer
	written func(n int)
	sums    bytes.Buffer
	created Facts
}

func newArchive(w io.Writer, f Facts, written func(n int)) (*archive, error) {
	a := &archive{tar: tar.NewWriter(w), written: written, created: f}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, err
	}
	return a, a.add(factsName, int64(len(data)), bytes.NewReader(data))
}

// add adds a file of size bytes.
func (a *archive) add(name string, size int64, content io.Reader) error {
	header := &tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: a.created.Created}
	if err := a.tar.WriteHeader(header); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	sum := sha256.New()
	counted := writerFunc(func(p []byte) (int, error) { a.written(len(p)); return len(p), nil })
	if n, err := io.Copy(io.MultiWriter(a.tar, sum, counted), content); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	} else if n != size {
		return fmt.Errorf("write %s: it has %d bytes and not %d", name, n, size)
	}
	fmt.Fprintf(&a.sums, "%x  %s\n", sum.Sum(nil), name)
	return nil
}

// close adds the sums, without which an archive is not whole.
func (a *archive) close() error {
	if err := a.add(sumsName, int64(a.sums.Len()), bytes.NewReader(bytes.Clone(a.sums.Bytes()))); err != nil {
		return err
	}
	return a.tar.Close()
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// read reads a whole archive and checks it. Its files other than the facts and the sums are written
// below dir, if dir is not empty. check is asked about the facts before the rest is read.
func read(r io.Reader, dir string, check func(Facts) error, done func(n int)) (Facts, error) {
	counted := io.TeeReader(r, writerFunc(func(p []byte) (int, error) { done(len(p)); return len(p), nil }))
	in := tar.NewReader(bufio.NewReaderSize(counted, 256<<10))
	var facts Facts
	var sums bytes.Buffer
	for _, name := range append([]string{factsName, databaseName}, keys...) {
		sum := sha256.New()
		content, size, err := next(in, name, sum)
		if err != nil {
			return facts, err
		}
		switch {
		case name == factsName:
			if facts, err = readFacts(content); err == nil {
				err = check(facts)
			}
		case dir == "":
			err = checkContent(name, content, size)
		default:
			err = write(filepath.Join(dir, name), content)
		}
		if err != nil {
			return facts, cut(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sum.Sum(nil), name)
	}
	content, _, err := next(in, sumsName, io.Discard)
	if err != nil {
		return facts, err
	}
	want, err := io.ReadAll(io.LimitReader(content, smallLimit))
	if err != nil {
		return facts, cut(err)
	}
	if !bytes.Equal(want, sums.Bytes()) {
		return facts, fmt.Errorf("%w: its content is not what was written (SHA-256): it is damaged", ErrDamaged)
	}
	return facts, nil
}

// next is the content of the next file, which must be called name, and its size. What is read of it
// goes to sum, too.
func next(in *tar.Reader, name string, sum io.Writer) (content io.Reader, size int64, err error) {
	header, err := in.Next()
	switch {
	case errors.Is(err, tar.ErrHeader) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		if name == factsName {
			return nil, 0, fmt.Errorf("%w: 'coracle snapshot save' did not write it", ErrDamaged)
		}
		return nil, 0, fmt.Errorf("%w: it ends before %s", ErrDamaged, name)
	case err != nil:
		return nil, 0, err
	case header.Name != name || header.Typeflag != tar.TypeReg:
		if name == factsName {
			return nil, 0, fmt.Errorf("%w: 'coracle snapshot save' did not write it", ErrDamaged)
		}
		return nil, 0, fmt.Errorf("%w: it has %q where %s should be", ErrDamaged, header.Name, name)
	case name != databaseName && header.Size > smallLimit:
		return nil, 0, fmt.Errorf("%w: %s has %d bytes", ErrDamaged, name, header.Size)
	}
	return io.TeeReader(in, sum), header.Size, nil
}

// checkContent says whether etcd or a program that reads keys will take a file.
func checkContent(name string, content io.Reader, size int64) error {
	if name != databaseName {
		data, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		if _, err := keyutil.ParsePrivateKeyPEM(data); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, name, err)
		}
		return nil
	}
	sum := sha256.New() // which etcd appends
	if _, err := io.CopyN(sum, content, max(0, size-sha256.Size)); err != nil {
		return err
	}
	appended, err := io.ReadAll(content)
	if err == nil && !bytes.Equal(appended, sum.Sum(nil)) {
		err = fmt.Errorf("%w: %s is not what etcd sent (SHA-256)", ErrDamaged, name)
	}
	return err
}

// cut says that an archive whose end is missing is damaged.
func cut(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: its end is missing", ErrDamaged)
	}
	return err
}

func readFacts(r io.Reader) (Facts, error) {
	var f Facts
	data, err := io.ReadAll(r)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%w: %s: %w", ErrDamaged, factsName, err)
	}
	if f.Format != format {
		return f, fmt.Errorf("its format is %d, and this version of coracle reads format %d: restore it with the version that wrote it, %s",
			f.Format, format, f.Coracle)
	}
	return f, nil
}

// write writes a file of mode 0600, and makes sure that it is on disk.
func write(path string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Sync(), f.Close())
}
