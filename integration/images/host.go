package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// hostFiles collects files of this machine for a layer.
type hostFiles struct {
	files []ociimage.File
	seen  map[string]bool
}

func newHostFiles() *hostFiles { return &hostFiles{seen: map[string]bool{}} }

func (h *hostFiles) layer() ociimage.Layer { return ociimage.Layer{Files: h.files} }

// add adds one file, once.
func (h *hostFiles) add(at, source string, mode fs.FileMode) {
	at = strings.TrimPrefix(at, "/")
	if h.seen[at] {
		return
	}
	h.seen[at] = true
	h.files = append(h.files, ociimage.Dirs(filepath.Dir(at))...)
	h.files = append(h.files, ociimage.File{Path: at, Mode: mode, Source: source})
}

// library is a file in the output of ldd(1).
var library = regexp.MustCompile(`/[^ ]+`)

// program adds a program, or a library, and the libraries that it needs.
func (h *hostFiles) program(at, source string) {
	h.add(at, source, 0o755)
	needs, err := exec.Command("ldd", source).Output()
	if err != nil { // it is static, and needs none
		return
	}
	for _, lib := range library.FindAllString(string(needs), -1) {
		h.add(lib, lib, 0o755)
	}
}

// hostPrograms is a layer with programs of this machine and the libraries that they need. It leaves
// out those that are missing: the specs that need one then fail, and say so.
func hostPrograms(names []string) (ociimage.Layer, error) {
	h := newHostFiles()
	for _, name := range names {
		program, err := exec.LookPath(name)
		if errors.Is(err, exec.ErrNotFound) {
			fmt.Fprintf(os.Stderr, "images: this machine has no %s for agnhost's image\n", name)
			continue
		}
		if err == nil {
			program, err = filepath.EvalSymlinks(program)
		}
		if err != nil {
			return ociimage.Layer{}, err
		}
		h.program("usr/bin/"+name, program)
	}
	return h.layer(), nil
}
