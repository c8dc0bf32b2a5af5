package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Bin returns the path of a file below the repository's bin directory, which `make`
// hands down as CORACLE_BIN. It fails the test, with what to run, if it is missing.
func Bin(t testing.TB, elem ...string) string {
	t.Helper()
	p, err := FindBin(elem...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// FindBin is Bin outside of tests.
func FindBin(elem ...string) (string, error) {
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, "bin")
	}
	p := filepath.Join(append([]string{dir}, elem...)...)
	if _, err := os.Stat(p); err != nil {
		return "", fmt.Errorf("%w: run it through `make integration`, which builds it", err)
	}
	return p, nil
}

// moduleRoot is the directory of go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", fmt.Errorf("%s: no go.mod here or above", wd)
		}
	}
}
