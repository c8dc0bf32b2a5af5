package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coracle-project/coracle/internal/testkit"
)

// mostBytes is how large a file of the repository may be: each clone has all that ever were there.
const mostBytes = 1 << 20

// Regression: a program of 180 MB, built next to its source, was committed.
func TestNoLargeFileIsCommitted(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		testkit.Untested(t, "the sizes of the repository's files, because this is no checkout: %v", err)
		t.SkipNow()
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(files) < 1000 {
		t.Errorf("only %d files were found", len(files))
	}
	for _, name := range files {
		info, err := os.Lstat(filepath.Join(root, name))
		if os.IsNotExist(err) { // deleted, and not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > mostBytes {
			t.Errorf("%s has %d bytes, and %d are allowed", name, info.Size(), mostBytes)
		}
	}
}

// mostLines is how long a Go file outside of tests may be. Past about 500 lines, a file has a
// second subject, which a reader would look for under a name of its own.
const mostLines = 550

func TestFilesAreShort(t *testing.T) {
	files := 0
	forGoFiles(t, func(path string, text []byte) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		files++
		if n := bytes.Count(text, []byte("\n")); n > mostLines {
			t.Errorf("%s has %d lines (%d allowed): split it by subject", path, n, mostLines)
		}
	})
	if files < 700 {
		t.Errorf("only %d files were read", files)
	}
}

// The name of a file is one word for its subject. After a `_` come only what the go command reads,
// and vm for tests that need a virtual machine and have the tag of that name.
func TestFileNames(t *testing.T) {
	files := 0
	forGoFiles(t, func(path string, _ []byte) {
		files++
		if name := filepath.Base(path); !wellNamed(name) {
			t.Errorf("%s: write %s", path, strings.ReplaceAll(name, "_", ""))
		}
	})
	if files < 1000 {
		t.Errorf("only %d files were read", files)
	}
	for name, want := range map[string]bool{
		"start.go": true, "start_test.go": true, "start_amd64.go": true, "start_vm_test.go": true, "start_linux_test.go": true,
		"container_start.go": false, "start_faults_test.go": false,
	} {
		if wellNamed(name) != want {
			t.Errorf("%s: %v, want %v", name, !want, want)
		}
	}
}

func wellNamed(name string) bool {
	parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(name, ".go"), "_test"), "_")
	for _, part := range parts[1:] {
		switch part {
		case "linux", "amd64", "arm64", "vm":
		default:
			return false
		}
	}
	return true
}
