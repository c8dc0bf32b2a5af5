package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const (
	// longestFile is the largest manifest in bytes, mostFiles how many a directory may have.
	longestFile = 8 << 20
	mostFiles   = 1000
)

var suffixes = []string{".yaml", ".yml", ".json"}

// errWriting is the error of a file that is not complete yet.
var errWriting = errors.New("it is open for writing")

// errEmpty is the error of a file of 0 bytes. A power failure leaves such a file if it was written
// just before, and the objects of the former file would be deleted.
var errEmpty = errors.New("it is empty: put its content back, or remove the file to delete its objects (a comment alone does so, too)")

// file is what a manifest says, or what is wrong with it.
type file struct {
	objects []*unstructured.Unstructured
	err     error
}

// read returns the manifests of a directory by their names, nil if the directory does not exist.
func read(dir string) (map[string]file, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := checkWriters(dir, info); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := map[string]file{}
	for _, e := range entries {
		// Editors keep what they write in hidden files first.
		if strings.HasPrefix(e.Name(), ".") || !slices.Contains(suffixes, filepath.Ext(e.Name())) {
			continue
		}
		if len(files) == mostFiles {
			return nil, fmt.Errorf("more than %d manifests", mostFiles)
		}
		objects, err := readFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) && e.Type().IsRegular() {
			continue // it was removed meanwhile
		}
		files[e.Name()] = file{objects, err}
	}
	return files, nil
}

func readFile(path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a FIFO would be waited for
		return nil, errors.New("it is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil { // another file may have taken its place
		return nil, err
	}
	if err := checkWriters(path, info); err != nil {
		return nil, err
	}
	if err := lease(f); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, longestFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > longestFile {
		return nil, fmt.Errorf("it is larger than %d bytes", longestFile)
	}
	if len(data) == 0 {
		return nil, errEmpty
	}
	return parse(data)
}

// checkWriters refuses what other users than root and this process's may write: manifests are
// applied with all rights of the cluster.
func checkWriters(path string, info fs.FileInfo) error {
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write it: chmod go-w %s", path)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("it belongs to user %d: chown root %s", s.Uid, path)
	}
	return nil
}

// lease fails with errWriting while f is open for writing: half a file may be valid, and the
// objects of the other half would be deleted. Until f is closed, the kernel has writers wait when
// they open or truncate it.
func lease(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return errWriting
	case err != nil: // a network file system, or fs.leases-enable is 0
		return fmt.Errorf("lease: %w (whether it is being written is not known: use a local file system)", err)
	}
	return nil
}

// parse returns the objects of a manifest. Documents without content are left out, and lists are
// taken apart.
func parse(data []byte) (objects []*unstructured.Unstructured, err error) {
	documents := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer func() { _ = documents.Close() }()
	whole := make([]byte, len(data)+1) // a document that does not fit would come in pieces
	for number := 1; ; number++ {
		n, err := documents.Read(whole)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		found, err := parseDocument(whole[:n])
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", number, err)
		}
		objects = append(objects, found...)
	}
}

func parseDocument(data []byte) ([]*unstructured.Unstructured, error) {
	var content map[string]any
	if err := yaml.UnmarshalStrict(data, &content); err != nil { // duplicate keys are errors
		return nil, err
	}
	if len(content) == 0 {
		return nil, nil
	}
	u := &unstructured.Unstructured{Object: content}
	if u.GetKind() == "" || u.GetAPIVersion() == "" {
		return nil, errors.New("an object without apiVersion and kind")
	}
	if !u.IsList() {
		return []*unstructured.Unstructured{u}, check(u)
	}
	var all []*unstructured.Unstructured
	err := u.EachListItem(func(item runtime.Object) error {
		one, ok := item.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("%s: an item that is no object", u.GetKind())
		}
		all = append(all, one)
		return check(one)
	})
	return all, err
}

func check(u *unstructured.Unstructured) error {
	switch {
	case u.GetKind() == "" || u.GetAPIVersion() == "":
		return errors.New("an object without apiVersion and kind")
	case u.GetName() == "" && u.GetGenerateName() != "":
		return fmt.Errorf("%s %s: generateName: an object that is kept needs a name", u.GetKind(), u.GetGenerateName())
	case u.GetName() == "":
		return fmt.Errorf("%s: metadata.name is missing", u.GetKind())
	}
	return nil
}
