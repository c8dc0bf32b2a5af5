// Package apparmor has the AppArmor profile of containers that ask for the runtime's default, and
// loads it into the kernel (https://docs.kernel.org/admin-guide/LSM/apparmor.html).
package apparmor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Default is the name of the profile. An administrator's own is left as it is: see Administrators.
const Default = "coracle-default"

// ErrNoParser is returned where apparmor_parser, which alone makes profiles the kernel takes, is
// missing.
var ErrNoParser = errors.New("no apparmor_parser (package apparmor)")

//go:generate go run ./generate profile

//go:embed profile
var profile []byte

// parseLimit bounds a run of apparmor_parser, which takes some 50 ms.
const parseLimit = time.Minute

// Enabled says whether the kernel confines by AppArmor.
func Enabled() bool {
	on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.TrimSpace(string(on)) == "Y"
}

// Profiles are those that are loaded.
type Profiles map[string]bool

// Loaded reads which profiles are loaded. It needs securityfs.
func Loaded() (Profiles, error) {
	b, err := os.ReadFile("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return nil, err
	}
	return parse(string(b)), nil
}

// parse reads "name (mode)" in each line; names may have blanks.
func parse(lines string) Profiles {
	all := Profiles{}
	for line := range strings.Lines(lines) {
		if i := strings.LastIndex(line, " ("); i > 0 {
			all[line[:i]] = true
		}
	}
	return all
}

// directory is where administrators have their profiles, and AppArmor its own files.
const directory = "/etc/apparmor.d"

// declares is the beginning of a profile of our name.
var declares = regexp.MustCompile(`(?m)^\s*profile\s+"?` + Default + `"?[\s{]`)

// Administrators finds the file in which an administrator has a profile of our name; "" if there is
// none.
func Administrators() (file string, err error) { return declared(directory) }

func declared(dir string) (file string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		st, err := os.Stat(file) // administrators link profiles here
		if errors.Is(err, fs.ErrNotExist) {
			continue // a link to nothing declares nothing
		}
		if err != nil {
			return "", err
		}
		if !st.Mode().IsRegular() {
			continue // reading a FIFO would hang
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if declares.Match(b) {
			return file, nil
		}
	}
	return "", nil
}

// pinned is the profile with the version of AppArmor's rules that it is written for, where the host
// has the file for that: newer ones want more of "network".
func pinned(dir string) []byte {
	const abi = "abi/3.0"
	if _, err := os.Stat(filepath.Join(dir, abi)); err != nil {
		return profile
	}
	return append([]byte("abi <"+abi+">,\n"), profile...)
}

// LoadDefault loads the profile, or replaces it.
func LoadDefault(ctx context.Context) error {
	parser, err := parserPath()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, parseLimit)
	defer cancel()
	var said bytes.Buffer
	// No cache: its directory may be read-only.
	cmd := exec.CommandContext(ctx, parser, "--replace", "--skip-cache")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(pinned(directory)), &said, &said
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("load AppArmor profile %s: %w: %s", Default, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// HasParser says whether LoadDefault can find apparmor_parser.
func HasParser() bool {
	_, err := parserPath()
	return err == nil
}

// parserPath looks where Debian has it, too: the PATH of services need not name that.
func parserPath() (string, error) {
	for _, name := range []string{"apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoParser
}
